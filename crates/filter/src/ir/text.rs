//! The text form of a program: printed by `Display`, read by `FromStr`.
//!
//! The grammar, one line for each block head, instruction or terminator; `;`
//! starts a comment:
//!
//! ```text
//! program = "filter" "{" block* "}"
//! block   = "b" N [ "(" value ("," value)* ")" ] ":" inst* term
//! inst    = value "=" op
//! op      = "len" | ("load.1"|"load.2"|"load.4") address
//!         | ("add"|"sub"|…|"shr") operand "," operand
//!         | "test" cmp operand "," operand
//! address = "[" N "]" | "[" value [ "+" N ] "]"
//! term    = "jmp" edge | "ret" operand
//!         | "br" cmp operand "," operand "," edge "," edge
//! edge    = "b" N [ "(" operand ("," operand)* ")" ]
//! operand = value | N          N: decimal or 0x hexadecimal
//! value   = "v" N
//! ```

use super::{
    BasicBlock, BinOp, Block, Cmp, Edge, Op, Operand, Program, Term, Value, Width, limits,
};
use std::fmt;
use std::str::FromStr;

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Val(value) => value.fmt(f),
            Operand::Imm(constant) if *constant < 10 => write!(f, "{constant}"),
            Operand::Imm(constant) => write!(f, "{constant:#x}"),
        }
    }
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.block.fmt(f)?;
        write_list(f, &self.args)
    }
}

fn write_list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        write!(f, "{}{item}", if index == 0 { "(" } else { ", " })?;
    }
    if items.is_empty() {
        Ok(())
    } else {
        write!(f, ")")
    }
}

const BIN_OPS: [(&str, BinOp); 10] = [
    ("add", BinOp::Add),
    ("sub", BinOp::Sub),
    ("mul", BinOp::Mul),
    ("div", BinOp::Div),
    ("mod", BinOp::Mod),
    ("and", BinOp::And),
    ("or", BinOp::Or),
    ("xor", BinOp::Xor),
    ("shl", BinOp::Shl),
    ("shr", BinOp::Shr),
];

const CMPS: [(&str, Cmp); 8] = [
    ("eq", Cmp::Eq),
    ("ne", Cmp::Ne),
    ("lt", Cmp::Lt),
    ("le", Cmp::Le),
    ("gt", Cmp::Gt),
    ("ge", Cmp::Ge),
    ("set", Cmp::Set),
    ("clear", Cmp::Clear),
];

fn name_of<T: PartialEq>(table: &[(&'static str, T)], item: &T) -> &'static str {
    let row = table.iter().find(|(_, candidate)| candidate == item);
    row.expect("every operation has a name").0
}

impl fmt::Display for BinOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&BIN_OPS, self))
    }
}

impl fmt::Display for Cmp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&CMPS, self))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Param => write!(f, "param"),
            Op::Len => write!(f, "len"),
            Op::Load {
                width,
                base,
                offset,
            } => {
                write!(f, "load.{} ", width.bytes())?;
                match (base, offset) {
                    (None, offset) => write!(f, "[{offset}]"),
                    (Some(base), 0) => write!(f, "[{base}]"),
                    (Some(base), offset) => write!(f, "[{base} + {offset}]"),
                }
            }
            Op::Bin { op, a, b } => write!(f, "{op} {a}, {b}"),
            Op::Test { cmp, a, b } => write!(f, "test {cmp} {a}, {b}"),
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Term::Jump(edge) => write!(f, "jmp {edge}"),
            Term::Branch {
                cmp,
                a,
                b,
                then,
                otherwise,
            } => write!(f, "br {cmp} {a}, {b}, {then}, {otherwise}"),
            Term::Return(verdict) => write!(f, "ret {verdict}"),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "filter {{")?;
        for (index, block) in self.blocks.iter().enumerate() {
            write!(f, "b{index}")?;
            write_list(f, &block.params)?;
            writeln!(f, ":")?;
            for &value in &block.insts {
                writeln!(f, "  {value} = {}", self.op(value))?;
            }
            writeln!(f, "  {}", block.term)?;
        }
        writeln!(f, "}}")
    }
}

/// The error of a text that is not a valid program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// Line number, from 1.
    pub line: usize,
    /// The text found and the text expected.
    pub message: String,
}

impl FromStr for Program {
    type Err = ParseError;

    /// Parses the text form and verifies the program.
    fn from_str(text: &str) -> Result<Program, ParseError> {
        let mut reader = Reader::default();
        let mut line_count = 0;
        for (index, line) in text.lines().enumerate() {
            line_count = index + 1;
            let line = line.split(';').next().unwrap_or_default().trim();
            if !line.is_empty() {
                reader.line(line).map_err(|message| ParseError {
                    line: line_count,
                    message,
                })?;
            }
        }
        reader.finish().map_err(|message| ParseError {
            line: line_count,
            message,
        })
    }
}

#[derive(Default)]
struct Reader {
    values: Vec<Option<Op>>,
    blocks: Vec<BasicBlock>,
    /// Parameters and instructions of the block being parsed.
    open: Option<(Vec<Value>, Vec<Value>)>,
    in_filter: bool,
    ended: bool,
}

type Fault<T> = Result<T, String>;

impl Reader {
    fn line(&mut self, line: &str) -> Fault<()> {
        if self.ended {
            return Err(format!("found `{line}` after the closing `}}`"));
        }
        if !self.in_filter {
            self.in_filter = true;
            let is_head = line.split_whitespace().eq(["filter", "{"]);
            return is_head
                .then_some(())
                .ok_or_else(|| format!("found `{line}`, expected `filter {{`"));
        }
        if line == "}" {
            self.ended = true;
            return match self.open {
                None => Ok(()),
                Some(_) => Err("the last block has no terminator".into()),
            };
        }
        if let Some(head) = line.strip_suffix(':') {
            return self.block_head(head);
        }
        if self.open.is_none() {
            return Err(format!("found `{line}`, expected a block such as `b0:`"));
        }
        match line.split_once('=') {
            Some((value, op)) => self.inst(value.trim(), op.trim()),
            None => self.term(line),
        }
    }

    fn block_head(&mut self, head: &str) -> Fault<()> {
        if self.open.is_some() {
            return Err(format!("`{head}:` starts before the block above has ended"));
        }
        let (name, params) = split_list(head)?;
        let block = block_name(name)?;
        if block.index() != self.blocks.len() {
            return Err(format!(
                "found `{block}`, expected `b{}`: blocks are numbered in order",
                self.blocks.len()
            ));
        }
        let mut values = Vec::new();
        for param in params {
            let value = value_name(param)?;
            self.define(value, Op::Param)?;
            values.push(value);
        }
        self.open = Some((values, Vec::new()));
        Ok(())
    }

    fn define(&mut self, value: Value, op: Op) -> Fault<()> {
        if value.index() >= limits::VALUES_MAX {
            return Err(format!(
                "`{value}`: a program has at most {} values",
                limits::VALUES_MAX
            ));
        }
        if self.values.len() <= value.index() {
            self.values.resize(value.index() + 1, None);
        }
        match self.values[value.index()].replace(op) {
            None => Ok(()),
            Some(_) => Err(format!("`{value}` is defined twice")),
        }
    }

    fn inst(&mut self, value: &str, op: &str) -> Fault<()> {
        let value = value_name(value)?;
        self.define(value, parse_op(op)?)?;
        if let Some((_, insts)) = &mut self.open {
            insts.push(value);
        }
        Ok(())
    }

    fn term(&mut self, line: &str) -> Fault<()> {
        let term = parse_term(line)?;
        if let Some((params, insts)) = self.open.take() {
            self.blocks.push(BasicBlock {
                params,
                insts,
                term,
            });
        }
        Ok(())
    }

    fn finish(self) -> Fault<Program> {
        if !self.ended {
            return Err("the text ends before the closing `}`".into());
        }
        let program = Program {
            // A number without a definition becomes a dead value; the verifier
            // refuses uses of it.
            values: self
                .values
                .into_iter()
                .map(|op| op.unwrap_or(Op::Param))
                .collect(),
            blocks: self.blocks,
        };
        program.verify().map_err(|error| error.to_string())?;
        Ok(program)
    }
}

fn parse_op(text: &str) -> Fault<Op> {
    let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
    let rest = rest.trim();
    match name {
        "len" if rest.is_empty() => Ok(Op::Len),
        "load.1" => parse_load(Width::B1, rest),
        "load.2" => parse_load(Width::B2, rest),
        "load.4" => parse_load(Width::B4, rest),
        "test" => {
            let (cmp, rest) = parse_cmp(rest)?;
            let [a, b] = parts(rest)?;
            Ok(Op::Test {
                cmp,
                a: operand(a)?,
                b: operand(b)?,
            })
        }
        _ => {
            let row = BIN_OPS.iter().find(|(candidate, _)| *candidate == name);
            let (_, op) = row.ok_or_else(|| {
                format!("found `{name}`, expected an operation: len, load.N, test, add, sub, …")
            })?;
            let [a, b] = parts(rest)?;
            Ok(Op::Bin {
                op: *op,
                a: operand(a)?,
                b: operand(b)?,
            })
        }
    }
}

fn parse_load(width: Width, text: &str) -> Fault<Op> {
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .ok_or_else(|| format!("found `{text}`, expected an address such as `[12]`"))?;
    let (base, offset) = match inner.split_once('+') {
        Some((base, offset)) => (Some(value_name(base.trim())?), number(offset.trim())?),
        None if inner.trim().starts_with('v') => (Some(value_name(inner.trim())?), 0),
        None => (None, number(inner.trim())?),
    };
    Ok(Op::Load {
        width,
        base,
        offset,
    })
}

fn parse_cmp(text: &str) -> Fault<(Cmp, &str)> {
    let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
    let row = CMPS.iter().find(|(candidate, _)| *candidate == name);
    row.map(|(_, cmp)| (*cmp, rest))
        .ok_or_else(|| format!("found `{name}`, expected a comparison: eq, ne, lt, le, …"))
}

fn parse_term(line: &str) -> Fault<Term> {
    let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
    match name {
        "ret" => Ok(Term::Return(operand(rest.trim())?)),
        "jmp" => Ok(Term::Jump(edge(rest.trim())?)),
        "br" => {
            let (cmp, rest) = parse_cmp(rest.trim())?;
            let [a, b, then, otherwise] = parts(rest)?;
            Ok(Term::Branch {
                cmp,
                a: operand(a)?,
                b: operand(b)?,
                then: edge(then)?,
                otherwise: edge(otherwise)?,
            })
        }
        _ => Err(format!(
            "found `{line}`, expected `vN = …`, `br`, `jmp` or `ret`"
        )),
    }
}

/// Splits `text` at the commas outside parentheses into exactly `N` parts.
fn parts<const N: usize>(text: &str) -> Fault<[&str; N]> {
    let found = split_commas(text);
    let count = found.len();
    found
        .try_into()
        .map_err(|_| format!("found {count} operands in `{text}`, expected {N}"))
}

fn split_commas(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    text.split(|c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .collect()
}

/// Splits `name(a, b)` into name and list; without parentheses the list is empty.
fn split_list(text: &str) -> Fault<(&str, Vec<&str>)> {
    match text.split_once('(') {
        None => Ok((text.trim(), Vec::new())),
        Some((name, rest)) => {
            let inner = rest
                .trim_end()
                .strip_suffix(')')
                .ok_or_else(|| format!("`{text}` lacks its `)`"))?;
            Ok((name.trim(), split_commas(inner)))
        }
    }
}

fn edge(text: &str) -> Fault<Edge> {
    let (name, args) = split_list(text)?;
    Ok(Edge {
        block: block_name(name)?,
        args: args.into_iter().map(operand).collect::<Fault<_>>()?,
    })
}

fn operand(text: &str) -> Fault<Operand> {
    if text.starts_with('v') {
        value_name(text).map(Operand::Val)
    } else {
        number(text).map(Operand::Imm)
    }
}

fn value_name(text: &str) -> Fault<Value> {
    numbered(text, 'v')
        .map(Value)
        .ok_or_else(|| format!("found `{text}`, expected a value such as `v0`"))
}

fn block_name(text: &str) -> Fault<Block> {
    numbered(text, 'b')
        .map(Block)
        .ok_or_else(|| format!("found `{text}`, expected a block such as `b0`"))
}

fn numbered(text: &str, letter: char) -> Option<u32> {
    let digits = text.strip_prefix(letter)?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

fn number(text: &str) -> Fault<u32> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("found `{text}`, expected a number of at most 32 bits"))
}
