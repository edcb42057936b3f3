//! Parser for the three text forms of tcpdump.

use super::text::{ALU_NAMES, JUMP_NAMES};
use super::{BytesError, INSNS_MAX, Insn, code, from_bytes};
use crate::lang::shown;

/// The error of a text that is not a program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// Line number, from 1.
    pub line: usize,
    /// The text found and the text expected.
    pub message: String,
}

/// The error of file contents that are not a program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// An error in a text form.
    #[error(transparent)]
    Text(#[from] ParseError),
    /// An error in the binary form.
    #[error(transparent)]
    Bytes(#[from] BytesError),
}

/// Parses a program in any form. Contents of printable ASCII and white space are parsed
/// as text by [`parse`]. Others, which include every array of `struct sock_filter` since
/// those contain zero bytes, are parsed by [`from_bytes`].
pub fn read(contents: &[u8]) -> Result<Vec<Insn>, ReadError> {
    let is_text = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r' | 0x0c);
    match str::from_utf8(contents) {
        Ok(text) if contents.iter().all(is_text) => Ok(parse(text)?),
        _ => Ok(from_bytes(contents)?),
    }
}

/// Parses a program in a text form of tcpdump. The first character determines the form:
/// `(` for `-d`, `{` for `-dd`, a digit for `-ddd`. Blank lines are skipped. In the
/// `-ddd` form a comma ends a line too, as in rules of `iptables -m bpf`.
///
/// The result is not verified.
pub fn parse(text: &str) -> Result<Vec<Insn>, ParseError> {
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty())
        .peekable();
    let Some(&(line, first)) = lines.peek() else {
        return Err(fault(1, "there is no program".into()));
    };
    match first.as_bytes()[0] {
        b'(' => collect(lines, listing_insn),
        b'{' => collect(lines, |_, line| c_insn(line)),
        b'0'..=b'9' => decimal(lines),
        _ => Err(fault(
            line,
            format!(
                "found {}, expected a program as tcpdump prints it: `(000) …` with -d, \
                 `{{ … }},` with -dd, a count with -ddd",
                shown(first)
            ),
        )),
    }
}

fn fault(line: usize, message: String) -> ParseError {
    ParseError { line, message }
}

type Fault<T> = Result<T, String>;

/// Parses one instruction a line.
fn collect<'t>(
    lines: impl Iterator<Item = (usize, &'t str)>,
    mut insn: impl FnMut(usize, &str) -> Fault<Insn>,
) -> Result<Vec<Insn>, ParseError> {
    let mut insns = Vec::new();
    for (line, text) in lines {
        if insns.len() == INSNS_MAX {
            let message = format!("a program has at most {INSNS_MAX} instructions");
            return Err(fault(line, message));
        }
        insns.push(insn(insns.len(), text).map_err(|message| fault(line, message))?);
    }
    Ok(insns)
}

/// Parses the `-ddd` form: `4`, then `40 0 0 12` and so on.
fn decimal<'t>(lines: impl Iterator<Item = (usize, &'t str)>) -> Result<Vec<Insn>, ParseError> {
    let mut pieces = lines
        .flat_map(|(line, text)| text.split(',').map(move |piece| (line, piece.trim())))
        .filter(|(_, piece)| !piece.is_empty());
    let (first_line, count) = pieces.next().unwrap_or((1, ""));
    let wanted: usize = number(count, INSNS_MAX as u64)
        .map_err(|message| fault(first_line, format!("the count of instructions: {message}")))?
        as usize;
    if wanted == 0 {
        let message = "the count of instructions is 0: there is no program".into();
        return Err(fault(first_line, message));
    }
    let mut last_line = first_line;
    let insns = collect(pieces.inspect(|(line, _)| last_line = *line), |_, text| {
        let fields = fields::<4>(text.split_ascii_whitespace(), text)?;
        insn_of(fields)
    })?;
    if insns.len() != wanted {
        let message = format!(
            "the first line says {wanted} instructions, but {} follow",
            insns.len()
        );
        return Err(fault(last_line, message));
    }
    Ok(insns)
}

/// Parses a line of the `-dd` form: `{ 0x28, 0, 0, 0x0000000c },`.
fn c_insn(line: &str) -> Fault<Insn> {
    let body = line.strip_suffix(',').unwrap_or(line).trim_end();
    let inner = body
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .ok_or_else(|| format!("found {}, expected `{{ code, jt, jf, k }},`", shown(line)))?;
    insn_of(fields::<4>(inner.split(','), line)?)
}

fn fields<'t, const N: usize>(
    fields: impl Iterator<Item = &'t str>,
    line: &str,
) -> Fault<[&'t str; N]> {
    // One more than N is enough to report that there are too many.
    let found: Vec<&str> = fields.take(N + 1).map(str::trim).collect();
    let count = found.len();
    found.try_into().map_err(|_| {
        let count = if count > N {
            format!("more than {N}")
        } else {
            count.to_string()
        };
        format!(
            "found {count} numbers in {}, expected {N}: code, jt, jf and k",
            shown(line)
        )
    })
}

fn insn_of([value, jt, jf, k]: [&str; 4]) -> Fault<Insn> {
    let field = |name, text, max| {
        number(text, max).map_err(|message| format!("the {name} of the instruction: {message}"))
    };
    Ok(Insn {
        code: field("code", value, u16::MAX.into())? as u16,
        jt: field("jt", jt, u8::MAX.into())? as u8,
        jf: field("jf", jf, u8::MAX.into())? as u8,
        k: field("k", k, u32::MAX.into())? as u32,
    })
}

/// Parses a decimal or `0x` hexadecimal number of at most `max`.
fn number(text: &str, max: u64) -> Fault<u64> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = hex.map_or((text, 10), |digits| (digits, 16));
    // `from_str_radix` would accept a sign.
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u64::from_str_radix(digits, radix) {
        Ok(value) if plain && value <= max => Ok(value),
        _ => Err(format!(
            "found {}, expected a number of at most {max}",
            shown(text)
        )),
    }
}

/// Parses a 32-bit constant, which `-d` prints as a signed number.
fn constant(text: &str) -> Fault<u32> {
    match text.strip_prefix('-') {
        Some(digits) => Ok((number(digits, 1 << 31)? as u32).wrapping_neg()),
        None => Ok(number(text, u32::MAX.into())? as u32),
    }
}

/// Parses a line of the `-d` form: `(001) jeq #0x800 jt 2 jf 5`, with any white space.
fn listing_insn(at: usize, line: &str) -> Fault<Insn> {
    let (index, rest) = line
        .strip_prefix('(')
        .and_then(|rest| rest.split_once(')'))
        .ok_or_else(|| format!("found {}, expected `({at:03})` first", shown(line)))?;
    let is_next = index.trim().parse() == Ok(at);
    if !is_next {
        return Err(format!(
            "found instruction number {}, expected {at}: they count from 0",
            shown(index)
        ));
    }
    let rest = rest.trim();
    let (name, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let rest = rest.trim();
    if let Some((op, _)) = JUMP_NAMES.iter().find(|(_, known)| *known == name) {
        return branch(at, *op, rest);
    }
    if let Some((op, ..)) = ALU_NAMES.iter().find(|(_, known, _)| *known == name) {
        let (source, k) = register_or_constant(name, rest)?;
        return Ok(Insn::stmt(code::ALU | op | source, k));
    }
    match name {
        "neg" => bare(name, rest, code::ALU | code::NEG),
        "tax" => bare(name, rest, code::MISC | code::TAX),
        "txa" => bare(name, rest, code::MISC | code::TXA),
        "ret" if rest.is_empty() => Ok(Insn::stmt(code::RET | code::A, 0)),
        "ret" => Ok(Insn::stmt(code::RET | code::K, immediate(name, rest)?)),
        "ja" => Ok(Insn::stmt(code::JMP | code::JA, distance(at, rest)?)),
        "st" => Ok(Insn::stmt(code::ST, scratch(name, rest)?)),
        "stx" => Ok(Insn::stmt(code::STX, scratch(name, rest)?)),
        "ld" => load(code::LD | code::W, name, rest),
        "ldh" => load(code::LD | code::H, name, rest),
        "ldb" => load(code::LD | code::B, name, rest),
        "ldx" => load(code::LDX | code::W, name, rest),
        "ldxb" => load(code::LDX | code::B, name, rest),
        "unimp" => Err(format!(
            "`unimp {rest}` stands for an instruction that -d cannot print; use -dd or -ddd"
        )),
        _ => Err(format!(
            "found {}, expected an instruction: ld, ldh, ldb, ldx, ldxb, st, stx, add … rsh, \
             neg, ja, jeq, jgt, jge, jset, ret, tax or txa",
            shown(name)
        )),
    }
}

fn bare(name: &str, operand: &str, value: u16) -> Fault<Insn> {
    if operand.is_empty() {
        return Ok(Insn::stmt(value, 0));
    }
    Err(format!(
        "found {} after `{name}`, which takes no operand",
        shown(operand)
    ))
}

fn expected<T>(name: &str, found: &str, what: &str) -> Fault<T> {
    Err(format!(
        "found {} after `{name}`, expected {what}",
        shown(found)
    ))
}

fn immediate(name: &str, text: &str) -> Fault<u32> {
    match text.strip_prefix('#') {
        Some(digits) => constant(digits),
        None => expected(name, text, "a constant such as `#12`"),
    }
}

fn register_or_constant(name: &str, text: &str) -> Fault<(u16, u32)> {
    if text == "x" {
        return Ok((code::X, 0));
    }
    match text.strip_prefix('#') {
        Some(digits) => Ok((code::K, constant(digits)?)),
        None => expected(name, text, "`x` or a constant such as `#12`"),
    }
}

fn bracketed<'t>(text: &'t str, open: &str, close: &str) -> Option<&'t str> {
    text.strip_prefix(open)?.strip_suffix(close)
}

fn scratch(name: &str, text: &str) -> Fault<u32> {
    match bracketed(text, "M[", "]") {
        Some(index) => constant(index),
        None => expected(name, text, "a scratch word such as `M[3]`"),
    }
}

/// The distance of a jump to the target that the listing states.
fn distance(at: usize, target: &str) -> Fault<u32> {
    Ok(constant(target)?.wrapping_sub(at as u32 + 1))
}

fn branch(at: usize, op: u16, rest: &str) -> Fault<Insn> {
    let mut words = rest.split_ascii_whitespace();
    let mut next = || words.next().unwrap_or_default();
    let operand = next();
    let (jt, then, jf, otherwise) = (next(), next(), next(), next());
    if jt != "jt" || jf != "jf" || words.next().is_some() {
        return Err(format!(
            "found {}, expected an operand, `jt` and `jf` with their targets",
            shown(rest)
        ));
    }
    let (source, k) = register_or_constant("a conditional jump", operand)?;
    let skip = |target: &str| {
        let distance = distance(at, target)?;
        u8::try_from(distance).map_err(|_| {
            format!(
                "the jump from {at} to {} does not lead 0 to 255 instructions ahead",
                shown(target)
            )
        })
    };
    let value = code::JMP | op | source;
    Ok(Insn::jump(value, k, skip(then)?, skip(otherwise)?))
}

/// Parses a load; `value` has class and size.
fn load(value: u16, name: &str, text: &str) -> Fault<Insn> {
    let is_word = code::size(value) == code::W;
    let into_x = code::class(value) == code::LDX;
    if is_word {
        if text == "#pktlen" {
            return Ok(Insn::stmt(value | code::LEN, 0));
        }
        if let Some(digits) = text.strip_prefix('#') {
            return Ok(Insn::stmt(value | code::IMM, constant(digits)?));
        }
        if let Some(index) = bracketed(text, "M[", "]") {
            return Ok(Insn::stmt(value | code::MEM, constant(index)?));
        }
    }
    if into_x {
        return match bracketed(text, "4*([", "]&0xf)") {
            Some(position) if !is_word => Ok(Insn::stmt(value | code::MSH, constant(position)?)),
            _ if is_word => expected(name, text, "`#pktlen`, a constant or a scratch word"),
            _ => expected(name, text, "`4*([14]&0xf)` with some position"),
        };
    }
    let Some(position) = bracketed(text, "[", "]") else {
        return expected(name, text, "a position such as `[12]` or `[x + 14]`");
    };
    let field = code::ANCILLARY.iter().find(|(_, field)| *field == position);
    if let Some((offset, _)) = field {
        return Ok(Insn::stmt(value | code::ABS, code::SKF_AD_OFF + offset));
    }
    match position.strip_prefix('x').map(str::trim_start) {
        Some(rest) => match rest.strip_prefix('+') {
            Some(offset) => Ok(Insn::stmt(value | code::IND, constant(offset.trim())?)),
            None => expected(name, text, "a position such as `[x + 14]`"),
        },
        None => Ok(Insn::stmt(value | code::ABS, constant(position)?)),
    }
}
