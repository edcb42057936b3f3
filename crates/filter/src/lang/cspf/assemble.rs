//! The assembler: parses programs in the style of the paper's figures.
//!
//! ```text
//! program   = structure | array | list
//! structure = [ words "struct" name … "=" ] "{" priority "," length "," [ "{" ] items [ "}" ] "}" [ ";" ]
//! array     = words … "=" "{" items "}" [ ";" ]
//! list      = items, each ended by a comma or a newline
//! item      = term { ( "|" | "+" ) term }
//! term      = action | operator | number
//! ```
//!
//! An item is one word: an operator, an action with an optional offset, both, or a
//! number. The items after an action with literals must be numbers.

use super::inst::{ACTION_BITS, len_of};
use super::lex::{Lexer, Token};
use super::{Dialect, Filter};
use crate::lang::expr::suggest::nearest;
use crate::lang::shown;

/// The error of a text that is not a program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct AssembleError {
    /// Line number, from 1.
    pub line: usize,
    /// The text found and the text expected.
    pub message: String,
}

/// Parses a program: a C structure as in figures 3-8 and 3-9, whose priority and length
/// are checked, or a bare list of words, one item each. Names may have the prefixes
/// `ENF_` and `NETF_` of the C headers. Comments are C's, or run from `#` to the end of
/// the line.
///
/// The result is not verified. Time and memory are bounded by the length of the text
/// and the dialect's limit on words.
pub fn assemble(text: &str, dialect: Dialect) -> Result<Filter, AssembleError> {
    let mut reader = Reader {
        lexer: Lexer::new(text),
        peeked: None,
        line: 1,
        dialect,
        words: Vec::new(),
        literals_due: 0,
        literal_of: String::new(),
    };
    let priority = reader.program().map_err(|message| AssembleError {
        line: reader.line,
        message,
    })?;
    Ok(Filter {
        dialect,
        priority,
        words: reader.words,
    })
}

type Fault<T> = Result<T, String>;

struct Reader<'t> {
    lexer: Lexer<'t>,
    peeked: Option<Token<'t>>,
    /// Line of the last token taken.
    line: usize,
    dialect: Dialect,
    words: Vec<u16>,
    /// Number of literals that the last instruction still takes, and its name.
    literals_due: usize,
    literal_of: String,
}

impl<'t> Reader<'t> {
    fn peek(&mut self) -> Fault<Token<'t>> {
        if let Some(token) = self.peeked {
            return Ok(token);
        }
        let read = self.lexer.next();
        if read.is_err() {
            // The error is at the lexer's position, not at the last token.
            self.line = self.lexer.line();
        }
        let token = read?;
        self.peeked = Some(token);
        Ok(token)
    }

    fn take(&mut self) -> Fault<Token<'t>> {
        let token = self.peek()?;
        self.peeked = None;
        // A newline token already belongs to the next line.
        self.line = self.lexer.line() - usize::from(token == Token::Newline);
        Ok(token)
    }

    fn skip_newlines(&mut self) -> Fault<()> {
        while self.peek()? == Token::Newline {
            self.take()?;
        }
        Ok(())
    }

    /// Takes `mark` if it is the next token; returns whether it was.
    fn takes(&mut self, mark: char) -> Fault<bool> {
        let found = self.peek()? == Token::Mark(mark);
        if found {
            self.take()?;
        }
        Ok(found)
    }

    /// Parses the whole text; returns the priority, if there is one.
    fn program(&mut self) -> Fault<Option<u8>> {
        self.skip_newlines()?;
        match self.peek()? {
            Token::Mark('{') => self.structure().map(Some),
            Token::Name("static" | "const" | "struct" | "unsigned" | "short") => self.declaration(),
            Token::Name("u_short" | "ushort_t" | "uint16_t" | "filter_t") => self.declaration(),
            _ => self.items(Until::End).map(|()| None),
        }
    }

    /// Parses a C declaration up to its initialiser, then the initialiser.
    fn declaration(&mut self) -> Fault<Option<u8>> {
        let mut is_structure = false;
        loop {
            self.skip_newlines()?;
            if self.peek()? == Token::Mark('{') {
                break;
            }
            match self.take()? {
                Token::Name("struct") => {
                    is_structure = true;
                    self.structure_name()?;
                }
                Token::Name(_) | Token::Number(_) => {}
                Token::Mark('=' | '[' | ']') => {}
                other => return Err(expected(other, "the `{` of the initialiser")),
            }
        }
        if is_structure {
            return self.structure().map(Some);
        }
        self.take()?;
        self.items(Until::Brace)?;
        self.close()?;
        Ok(None)
    }

    fn structure_name(&mut self) -> Fault<()> {
        match self.take()? {
            Token::Name("enfilter" | "packetfilt" | "Pf_ext_packetfilt") => Ok(()),
            other => Err(expected(other, "`enfilter`, as in `struct enfilter f`")),
        }
    }

    /// Parses `{ priority, length, items }`; the opening brace is the next token.
    fn structure(&mut self) -> Fault<u8> {
        self.take()?;
        let priority = self.field("priority", u8::MAX.into())?;
        let length = self.field("length", self.dialect.words_max() as u32)?;
        let length_line = self.line;
        self.skip_newlines()?;
        let nested = self.takes('{')?;
        self.items(Until::Brace)?;
        if nested {
            self.take()?;
            self.skip_newlines()?;
            self.takes(',')?;
            self.skip_newlines()?;
            if self.peek()? != Token::Mark('}') {
                let found = self.take()?;
                return Err(expected(found, "the `}` of the structure"));
            }
        }
        self.close()?;
        let found = self.words.len();
        if found != length as usize {
            self.line = length_line;
            return Err(format!(
                "the length says {length} words, but {found} follow"
            ));
        }
        Ok(priority as u8)
    }

    /// Parses a number before the words, and its comma.
    fn field(&mut self, name: &str, max: u32) -> Fault<u32> {
        self.skip_newlines()?;
        let value = match self.take()? {
            Token::Number(value) if value <= max => value,
            other => {
                let what = format!("the {name}, a number of at most {max}");
                return Err(expected(other, &what));
            }
        };
        self.skip_newlines()?;
        if !self.takes(',')? && self.peek()? != Token::Mark('}') {
            let found = self.take()?;
            return Err(expected(found, &format!("`,` after the {name}")));
        }
        Ok(value)
    }

    /// Parses the closing brace and the end of the text.
    fn close(&mut self) -> Fault<()> {
        self.take()?;
        self.skip_newlines()?;
        self.takes(';')?;
        self.skip_newlines()?;
        match self.take()? {
            Token::End => Ok(()),
            other => Err(expected(other, "nothing after the closing `}`")),
        }
    }

    /// Parses words up to the closing brace, which is not taken, or to the end of the
    /// text.
    fn items(&mut self, until: Until) -> Fault<()> {
        let ends = match until {
            Until::Brace => Token::Mark('}'),
            Until::End => Token::End,
        };
        loop {
            self.skip_newlines()?;
            if self.peek()? == ends {
                return Ok(());
            }
            self.item(until)?;
            match self.peek()? {
                Token::Mark(',') => {
                    self.take()?;
                }
                // Inside braces a newline is white space, as in C.
                Token::Newline if until == Until::End => {}
                token if token == ends => {}
                _ => {
                    let found = self.take()?;
                    return Err(expected(found, "`,` between words, `|` or `+`"));
                }
            }
            if until == Until::Brace {
                self.skip_newlines()?;
            }
        }
    }

    /// Parses one word.
    fn item(&mut self, until: Until) -> Fault<()> {
        let mut item = Item::default();
        loop {
            self.skip_newlines()?;
            match self.take()? {
                Token::Name(name) => item.name(name, self.dialect)?,
                Token::Number(number) => item.number(number),
                other => return Err(expected(other, "an action, an operator or a number")),
            }
            if until == Until::Brace {
                self.skip_newlines()?;
            }
            match self.peek()? {
                Token::Mark('|') => item.end_group(),
                Token::Mark('+') => {}
                _ => break,
            }
            self.take()?;
        }
        item.end_group();
        self.word(&item)
    }

    fn word(&mut self, item: &Item) -> Fault<()> {
        if self.words.len() == self.dialect.words_max() {
            return Err(format!(
                "the dialect {} allows {} words in one program",
                self.dialect,
                self.dialect.words_max()
            ));
        }
        if self.literals_due > 0 {
            let literal = item.literal(&self.literal_of)?;
            self.words.push(literal);
            self.literals_due -= 1;
            return Ok(());
        }
        let word = item.instruction(self.dialect)?;
        self.words.push(word);
        self.literals_due = len_of(self.dialect, word) - 1;
        let name = item.first_name.clone();
        self.literal_of = name.unwrap_or_else(|| format!("{word:#06x}"));
        Ok(())
    }
}

/// The end of a list of words.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    Brace,
    End,
}

fn expected(found: Token<'_>, what: &str) -> String {
    let found = match found {
        Token::Name(name) => shown(name),
        Token::Number(number) => format!("`{number}`"),
        Token::Mark(mark) => format!("`{mark}`"),
        Token::Newline => "the end of the line".into(),
        Token::End => "the end of the text".into(),
    };
    format!("found {found}, expected {what}")
}

/// The terms of one word. `|` separates *groups* of terms.
#[derive(Default)]
struct Item {
    first_name: Option<String>,
    /// Name and code of the action, and the largest offset that may be added.
    action: Option<(&'static str, u16, u16)>,
    operator: Option<(&'static str, u16)>,
    /// The offset added to the action.
    added: u64,
    /// The bitwise or of the numbers in groups without an action.
    alone: Option<u64>,
    /// The sum of the numbers in this group, and whether the group has an action.
    sum: Option<u64>,
    has_action: bool,
}

impl Item {
    fn number(&mut self, number: u32) {
        let sum = self.sum.get_or_insert(0);
        *sum = sum.saturating_add(number.into());
    }

    fn end_group(&mut self) {
        let sum = self.sum.take();
        if self.has_action {
            self.added = sum.unwrap_or(0);
        } else if let Some(sum) = sum {
            *self.alone.get_or_insert(0) |= sum;
        }
        self.has_action = false;
    }

    fn name(&mut self, name: &str, dialect: Dialect) -> Fault<()> {
        let plain = name
            .strip_prefix("ENF_")
            .or_else(|| name.strip_prefix("NETF_"))
            .unwrap_or(name);
        if let Some((code, (known, _))) = operator_named(dialect, plain) {
            let (known, code) = (*known, code as u16);
            if let Some((other, _)) = self.operator.replace((known, code)) {
                return Err(format!(
                    "found {} beside `{other}`; a word has one operator",
                    shown(name)
                ));
            }
        } else if let Some(action) = action_named(dialect, plain) {
            self.has_action = true;
            if let Some((other, ..)) = self.action.replace(action) {
                return Err(format!(
                    "found {} beside `{other}`; a word has one action",
                    shown(name)
                ));
            }
        } else {
            return Err(unknown_name(name, plain, dialect));
        }
        self.first_name.get_or_insert_with(|| plain.to_owned());
        Ok(())
    }

    /// The word as an instruction.
    fn instruction(&self, dialect: Dialect) -> Fault<u16> {
        match (self.alone, &self.first_name) {
            (Some(word), None) => {
                return u16::try_from(word)
                    .map_err(|_| format!("found `{word}`, expected a word of at most 65535"));
            }
            (Some(number), Some(name)) => {
                return Err(format!(
                    "found the number {number} beside {}; a number is added to an action \
                     with `+`",
                    shown(name)
                ));
            }
            (None, _) => {}
        }
        let (name, code, room) = self.action.unwrap_or(("NOPUSH", 0, 0));
        if self.added > room.into() {
            let added = self.added;
            return Err(match room {
                0 => format!("found `{name}+{added}`; nothing is added to {name}"),
                _ => format!("found `{name}+{added}`; in the dialect {dialect} it ends at +{room}"),
            });
        }
        let operator = self.operator.map_or(0, |(_, code)| code);
        Ok(operator << ACTION_BITS | (code + self.added as u16))
    }

    /// The word as a literal of `instruction`.
    fn literal(&self, instruction: &str) -> Fault<u16> {
        let number = self.alone.unwrap_or(0);
        let found = match &self.first_name {
            Some(name) => shown(name),
            None if number <= u16::MAX.into() => return Ok(number as u16),
            None => format!("`{number}`"),
        };
        Err(format!(
            "found {found}, expected a number of at most 65535: the literal that {} takes",
            shown(instruction)
        ))
    }
}

fn operator_named(
    dialect: Dialect,
    name: &str,
) -> Option<(usize, &'static (&'static str, super::inst::Operator))> {
    let mut operators = dialect.operators().iter().enumerate();
    operators.find(|(_, (known, _))| *known == name)
}

fn action_named(dialect: Dialect, name: &str) -> Option<(&'static str, u16, u16)> {
    let range = dialect.ranges().iter().find(|(.., known)| *known == name);
    if let Some(&(start, end, name)) = range {
        return Some((name, start, end - start - 1));
    }
    let row = dialect.actions().find(|(_, known, _)| *known == name);
    row.map(|&(code, name, _)| (name, code, 0))
}

/// All names of a dialect.
fn names(dialect: Dialect) -> impl Iterator<Item = &'static str> {
    let operators = dialect.operators().iter().map(|(name, _)| *name);
    let ranges = dialect.ranges().iter().map(|(.., name)| *name);
    let actions = dialect.actions().map(|(_, name, _)| *name);
    operators.chain(ranges).chain(actions)
}

fn unknown_name(name: &str, plain: &str, dialect: Dialect) -> String {
    let others: Vec<_> = Dialect::ALL
        .into_iter()
        .filter(|other| names(*other).any(|known| known == plain))
        .map(Dialect::name)
        .collect();
    let found = shown(name);
    if !others.is_empty() {
        return format!(
            "found {found}, which the dialect {dialect} does not have; it is of {}",
            others.join(", ")
        );
    }
    let names = names(dialect);
    match nearest(plain, names) {
        Some(known) => format!(
            "found {found}, expected an action or operator of the dialect {dialect}; did you \
             mean `{known}`?"
        ),
        None => format!("found {found}, expected an action or operator of the dialect {dialect}"),
    }
}
