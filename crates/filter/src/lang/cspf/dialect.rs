//! The dialects: names and codes of actions and operators, and limits.

use std::fmt;
use std::str::FromStr;

use super::inst::{Action, Operator};
use crate::ir::Width;

/// A dialect of the stack language. The same words have different meanings in
/// different dialects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Dialect {
    /// The 1987 paper with DEC's codes. A short-circuit operator that does not end the
    /// program pushes the result of its comparison (section 3.1).
    #[default]
    Paper,
    /// 4.3BSD's `enet(4)`, with the fewest actions. A short-circuit operator that does
    /// not end the program pushes nothing.
    Bsd,
    /// `packetfilter(4)` of ULTRIX and Digital UNIX, with the paper's codes. A
    /// short-circuit operator that does not end the program pushes nothing.
    Dec,
    /// `nit_pf(4M)` of SunOS and `pfmod(7M)` of Solaris. The codes of `PUSHFF00` and
    /// `PUSH00FF` are exchanged; it adds an offset register, branches and `POP`.
    Sun,
    /// Mach's `net_filter`: cells of 32 bits, arithmetic, indirect pushes, and a link
    /// header separate from the packet.
    Mach,
    /// The extensions that section 7 of the paper proposes: fields of 8 and 32 bits,
    /// indirect pushes, arithmetic, cells of 32 bits. Sun's branches and Mach's `PUSHSTK`
    /// make every filter expressible. All else is as in the paper.
    Weir,
}

/// The error of a name that is not a dialect.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no dialect of the stack language; there are paper, bsd, dec, sun, mach and weir")]
pub struct UnknownDialect(pub String);

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dialect {
    type Err = UnknownDialect;

    /// Parses a name in any case.
    fn from_str(text: &str) -> Result<Dialect, UnknownDialect> {
        let named = |dialect: &Dialect| dialect.name().eq_ignore_ascii_case(text.trim());
        let found = Dialect::ALL.into_iter().find(named);
        found.ok_or_else(|| UnknownDialect(text.to_owned()))
    }
}

/// The code of `PUSHWORD+0` in every dialect.
pub(super) const PUSHWORD: u16 = 16;
/// The code of Mach's `PUSHHDR+0`.
pub(super) const PUSHHDR: u16 = 960;
/// The code of `PUSHSTK+0` in the dialects `mach` and `weir`.
pub(super) const PUSHSTK: u16 = 992;
/// Upper limit of action codes, exclusive.
pub(super) const ACTIONS_END: u16 = 1024;

type Actions = &'static [(u16, &'static str, Action)];

const BASE: Actions = &[
    (0, "NOPUSH", Action::NoPush),
    (1, "PUSHLIT", Action::Literal),
    (2, "PUSHZERO", Action::Constant(0)),
];

const DEC: Actions = &[
    (3, "PUSHONE", Action::Constant(1)),
    (4, "PUSHFFFF", Action::Constant(0xffff)),
    (5, "PUSH00FF", Action::Constant(0x00ff)),
    (6, "PUSHFF00", Action::Constant(0xff00)),
];

const SUN: Actions = &[
    (3, "PUSHONE", Action::Constant(1)),
    (4, "PUSHFFFF", Action::Constant(0xffff)),
    (5, "PUSHFF00", Action::Constant(0xff00)),
    (6, "PUSH00FF", Action::Constant(0x00ff)),
    (7, "LOAD_OFFSET", Action::LoadOffset),
    (8, "BRTR", Action::Branch { when: true }),
    (9, "BRFL", Action::Branch { when: false }),
    (10, "POP", Action::Pop),
];

const MACH: Actions = &[
    (14, "PUSHIND", Action::WordAt),
    (15, "PUSHHDRIND", Action::HeaderAt),
];

const WEIR: Actions = &[
    (3, "PUSHONE", Action::Constant(1)),
    (4, "PUSHFFFF", Action::Constant(0xffff)),
    (5, "PUSH00FF", Action::Constant(0x00ff)),
    (6, "PUSHFF00", Action::Constant(0xff00)),
    (7, "PUSHLIT32", Action::LongLiteral),
    (8, "PUSHBYTE", Action::Field(Width::B1)),
    (9, "PUSHSHORT", Action::Field(Width::B2)),
    (10, "PUSHLONG", Action::Field(Width::B4)),
    (11, "PUSHBYTEIND", Action::FieldAt(Width::B1)),
    (12, "PUSHSHORTIND", Action::FieldAt(Width::B2)),
    (13, "PUSHLONGIND", Action::FieldAt(Width::B4)),
    (14, "PUSHIND", Action::WordAt),
    (15, "PUSHLEN", Action::Length),
    (960, "BRTR", Action::Branch { when: true }),
    (961, "BRFL", Action::Branch { when: false }),
    (962, "POP", Action::Pop),
];

/// The operators in the order of their codes.
const OPERATORS: [(&str, Operator); 21] = [
    ("NOP", Operator::Nop),
    ("EQ", Operator::Eq),
    ("LT", Operator::Lt),
    ("LE", Operator::Le),
    ("GT", Operator::Gt),
    ("GE", Operator::Ge),
    ("AND", Operator::And),
    ("OR", Operator::Or),
    ("XOR", Operator::Xor),
    ("COR", Operator::Cor),
    ("CAND", Operator::Cand),
    ("CNOR", Operator::Cnor),
    ("CNAND", Operator::Cnand),
    ("NEQ", Operator::Neq),
    ("LSH", Operator::Lsh),
    ("RSH", Operator::Rsh),
    ("ADD", Operator::Add),
    ("SUB", Operator::Sub),
    ("MUL", Operator::Mul),
    ("DIV", Operator::Div),
    ("MOD", Operator::Mod),
];

impl Dialect {
    /// Every dialect, in the order of the documentation.
    pub const ALL: [Dialect; 6] = [
        Dialect::Paper,
        Dialect::Bsd,
        Dialect::Dec,
        Dialect::Sun,
        Dialect::Mach,
        Dialect::Weir,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Paper => "paper",
            Dialect::Bsd => "bsd",
            Dialect::Dec => "dec",
            Dialect::Sun => "sun",
            Dialect::Mach => "mach",
            Dialect::Weir => "weir",
        }
    }

    /// Maximum number of words in one program.
    ///
    /// BSD and DEC: `ENMAXFILTERS`. Paper: the range of the length byte in the structure
    /// of figure 3-8. Sun: `PF_MAXFILTERS` of the extended structure. Mach:
    /// `NET_MAX_FILTER`.
    pub fn words_max(self) -> usize {
        match self {
            Dialect::Paper => 255,
            Dialect::Bsd | Dialect::Dec => 40,
            Dialect::Sun => 2047,
            Dialect::Mach => 128,
            Dialect::Weir => 4096,
        }
    }

    /// Maximum number of cells on the stack. The old interpreters reject two cells before
    /// the end of their array ("small yellow zone").
    pub fn stack_max(self) -> usize {
        match self {
            Dialect::Paper | Dialect::Weir => 255,
            Dialect::Bsd | Dialect::Dec => 38,
            Dialect::Sun => 253,
            Dialect::Mach => 30,
        }
    }

    /// Whether a short-circuit operator that does not end the program pushes the result
    /// of its comparison. If not, it pushes nothing.
    pub fn pushes_on_continue(self) -> bool {
        matches!(self, Dialect::Paper | Dialect::Weir)
    }

    /// The actions with a single code: code, name and action.
    pub(super) fn actions(self) -> impl Iterator<Item = &'static (u16, &'static str, Action)> {
        let own = match self {
            Dialect::Bsd => &[],
            Dialect::Paper | Dialect::Dec => DEC,
            Dialect::Sun => SUN,
            Dialect::Mach => MACH,
            Dialect::Weir => WEIR,
        };
        BASE.iter().chain(own)
    }

    /// The actions with a range of codes: first code, end (exclusive), and the name, to
    /// which the offset in the range is added.
    pub(super) fn ranges(self) -> &'static [(u16, u16, &'static str)] {
        match self {
            Dialect::Mach => &[
                (PUSHWORD, PUSHHDR, "PUSHWORD"),
                (PUSHHDR, PUSHSTK, "PUSHHDR"),
                (PUSHSTK, ACTIONS_END, "PUSHSTK"),
            ],
            // Codes from 960 on have meanings of this dialect only, except Mach's
            // `PUSHSTK`.
            Dialect::Weir => &[
                (PUSHWORD, PUSHHDR, "PUSHWORD"),
                (PUSHSTK, ACTIONS_END, "PUSHSTK"),
            ],
            _ => &[(PUSHWORD, ACTIONS_END, "PUSHWORD")],
        }
    }

    /// The code of an action; `None` if the dialect lacks it.
    pub(crate) fn action_code(self, action: Action) -> Option<u16> {
        let (name, start, n) = match action {
            Action::Word(n) => ("PUSHWORD", PUSHWORD, n),
            Action::Header(n) => ("PUSHHDR", PUSHHDR, n),
            Action::Copy(n) => ("PUSHSTK", PUSHSTK, n),
            _ => {
                let row = self.actions().find(|(.., known)| *known == action);
                return row.map(|&(code, ..)| code);
            }
        };
        let range = self.ranges().iter().find(|(.., known)| *known == name);
        let code = start.checked_add(n)?;
        range.and_then(|&(_, end, _)| (code < end).then_some(code))
    }

    /// The code of an operator; `None` if the dialect lacks it.
    pub(crate) fn operator_code(self, operator: Operator) -> Option<u16> {
        let mut operators = self.operators().iter();
        let code = operators.position(|(_, known)| *known == operator)?;
        Some(code as u16)
    }

    /// The operators in the order of their codes.
    pub(super) fn operators(self) -> &'static [(&'static str, Operator)] {
        match self {
            Dialect::Paper | Dialect::Bsd | Dialect::Dec | Dialect::Sun => &OPERATORS[..14],
            Dialect::Mach => &OPERATORS[..18],
            Dialect::Weir => &OPERATORS,
        }
    }
}
