//! The assembler: resolves labels, relaxes jumps, drops unreachable instructions.

use super::EmitError;
use super::insn::{Insn, op};

/// A position in a program that jumps can refer to before the position is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Label(u32);

#[derive(Clone, Copy, Debug)]
enum Item {
    Plain(Insn),
    /// A conditional jump.
    Jump(Insn, Label),
    Goto(Label),
    /// A call of a routine of the same program.
    Call(Label),
}

/// A program under construction.
///
/// A jump over more than 16,384 instructions becomes `gotol` if [`Limits`] allow it.
/// The 16-bit range of 32,767 is not used in full, since the kernel inserts
/// instructions of its own. Jumps to the next instruction and unreachable
/// instructions are dropped. A `goto` to an `exit` becomes an `exit`.
///
/// ```
/// use weir_filter::backend::ebpf::{Asm, Insn, Limits, Reg, op};
///
/// let mut asm = Asm::new();
/// let end = asm.label();
/// asm.push(Insn::mov32(Reg::R0, 0));
/// asm.jump(Insn::jump64(op::JEQ, Reg::R1, 0), end);
/// asm.push(Insn::mov32(Reg::R0, 1));
/// asm.bind(end);
/// asm.push(Insn::exit());
/// assert_eq!(asm.finish(&Limits::default()).unwrap()[1].off, 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Asm {
    items: Vec<Item>,
    /// For each label, the index of the item behind it.
    bound_at: Vec<Option<u32>>,
}

/// Limits on the finished program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Maximum number of instructions. The kernel accepts 1,000,000 from privileged
    /// users, 4,096 from others.
    pub insns_max: usize,
    /// Whether `gotol` may be used (Linux 6.6). If not, a jump out of the 16-bit range
    /// is an error.
    pub long_jumps: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            insns_max: 1_000_000,
            long_jumps: true,
        }
    }
}

impl Extend<Insn> for Asm {
    fn extend<T: IntoIterator<Item = Insn>>(&mut self, insns: T) {
        insns.into_iter().for_each(|insn| self.push(insn));
    }
}

impl Asm {
    /// An empty program.
    pub fn new() -> Asm {
        Asm::default()
    }

    /// Creates a label, to be [bound](Self::bind) once.
    pub fn label(&mut self) -> Label {
        self.bound_at.push(None);
        Label(self.bound_at.len() as u32 - 1)
    }

    /// Binds `label` to the position of the next instruction.
    ///
    /// # Panics
    /// If the label is already bound.
    pub fn bind(&mut self, label: Label) {
        let bound = &mut self.bound_at[label.0 as usize];
        assert!(bound.is_none(), "a label is bound once");
        *bound = Some(self.items.len() as u32);
    }

    /// Adds an instruction.
    pub fn push(&mut self, insn: Insn) {
        self.items.push(Item::Plain(insn));
    }

    /// Adds a conditional jump to `label`; [`finish`](Self::finish) sets the offset.
    pub fn jump(&mut self, insn: Insn, label: Label) {
        self.items.push(Item::Jump(insn, label));
    }

    /// Adds a jump to `label`.
    pub fn goto(&mut self, label: Label) {
        self.items.push(Item::Goto(label));
    }

    /// Adds a call of the routine at `label`. The routine is behind the rest of the
    /// program and ends in `exit`. It has its own r6 to r9 and its own stack; r1 to r5
    /// are its arguments.
    ///
    /// ```
    /// use weir_filter::backend::ebpf::{Asm, Insn, Limits, Listing, Reg, op};
    ///
    /// let mut asm = Asm::new();
    /// let twice = asm.label();
    /// asm.call(twice);
    /// asm.push(Insn::exit());
    /// asm.bind(twice);
    /// asm.push(Insn::mov32(Reg::R0, Reg::R1));
    /// asm.push(Insn::alu32(op::ADD, Reg::R0, Reg::R1));
    /// asm.push(Insn::exit());
    /// let insns = asm.finish(&Limits::default()).unwrap();
    /// assert_eq!(insns.len(), 5);
    /// assert_eq!(insns[0].to_string(), "call pc+1");
    /// ```
    pub fn call(&mut self, label: Label) {
        self.items.push(Item::Call(label));
    }

    /// Number of instructions so far, without those that long jumps will need.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is no instruction so far.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the program.
    ///
    /// # Errors
    /// If the program is longer than `limits` allow, or a jump is too far.
    ///
    /// # Panics
    /// If the label of a jump is not bound.
    pub fn finish(mut self, limits: &Limits) -> Result<Vec<Insn>, EmitError> {
        self.inline_exits();
        let kept = self.next_reachable();
        let layout = self.layout(&kept, limits);
        let count = *layout.starts.last().expect("there is an end") as usize;
        if count > limits.insns_max {
            let max = limits.insns_max;
            return Err(EmitError::TooManyInsns { count, max });
        }
        let mut insns = Vec::with_capacity(count);
        for (index, item) in self.items.iter().enumerate() {
            if layout.sizes[index] > 0 {
                let distance = |label| {
                    i64::from(layout.starts[self.position(label)]) - i64::from(layout.starts[index])
                };
                let size = layout.sizes[index];
                write_item(&mut insns, *item, size, distance, limits)?;
            }
        }
        Ok(insns)
    }

    fn position(&self, label: Label) -> usize {
        self.bound_at[label.0 as usize].expect("every label that a jump names is bound") as usize
    }

    /// Replaces each `goto` to an `exit` by an `exit`.
    fn inline_exits(&mut self) {
        for index in 0..self.items.len() {
            if let Item::Goto(label) = self.items[index]
                && self.exits_at(self.position(label))
            {
                self.items[index] = Item::Plain(Insn::exit());
            }
        }
    }

    fn exits_at(&self, index: usize) -> bool {
        matches!(self.items.get(index), Some(Item::Plain(insn)) if *insn == Insn::exit())
    }

    /// Marks the reachable items; the verifier refuses unreachable instructions.
    fn reached(&self) -> Vec<bool> {
        let mut reached = vec![false; self.items.len()];
        let mut open = vec![0];
        while let Some(index) = open.pop() {
            if index >= self.items.len() || std::mem::replace(&mut reached[index], true) {
                continue;
            }
            match self.items[index] {
                Item::Plain(_) if self.exits_at(index) => {}
                Item::Plain(_) => open.push(index + 1),
                Item::Jump(_, label) | Item::Call(label) => {
                    open.extend([index + 1, self.position(label)]);
                }
                Item::Goto(label) => open.push(self.position(label)),
            }
        }
        reached
    }

    /// For each index, and the end, the first item at or after it that is kept. Dropped
    /// are unreachable items and jumps to the next kept item.
    fn next_reachable(&self) -> Vec<u32> {
        let reached = self.reached();
        let mut kept = vec![self.items.len() as u32; self.items.len() + 1];
        for index in (0..self.items.len()).rev() {
            let next = kept[index + 1];
            let idle = match self.items[index] {
                Item::Plain(_) | Item::Call(_) => false,
                Item::Jump(_, label) | Item::Goto(label) => {
                    let position = self.position(label);
                    position > index && position as u32 <= next
                }
            };
            let stays = reached[index] && !idle;
            kept[index] = if stays { index as u32 } else { next };
        }
        kept
    }

    /// Lengthens jumps until each reaches its label. Sizes only grow, so the loop ends;
    /// two or three rounds are usual.
    fn layout(&self, kept: &[u32], limits: &Limits) -> Layout {
        let near = if limits.long_jumps {
            NEAR_MAX
        } else {
            i64::from(i16::MAX)
        };
        let stays = |index: usize| kept[index] as usize == index;
        let sizes = (0..self.items.len()).map(|index| u32::from(stays(index)));
        let mut layout = Layout {
            sizes: sizes.collect(),
            starts: Vec::new(),
        };
        loop {
            layout.assign_starts();
            let mut changed = false;
            for (index, item) in self.items.iter().enumerate() {
                let (label, long) = match item {
                    Item::Plain(_) | Item::Call(_) => continue,
                    // A long jump may take an instruction more, which `write_item` accounts for.
                    Item::Jump(insn, label) => (*label, long_size(insn)),
                    Item::Goto(label) => (*label, GOTO_LONG),
                };
                if layout.sizes[index] == 1 {
                    let from = i64::from(layout.starts[index]) + 1;
                    let distance = i64::from(layout.starts[self.position(label)]) - from;
                    if !(-near..=near).contains(&distance) {
                        layout.sizes[index] = long;
                        changed = true;
                    }
                }
            }
            if !changed {
                return layout;
            }
        }
    }
}

/// Largest distance of a short jump if `gotol` is allowed, in instructions. The margin
/// to 32,767 is for instructions that the kernel inserts.
const NEAR_MAX: i64 = 1 << 14;

/// Marks a long `goto` during layout; it takes one instruction as a short one does.
const GOTO_LONG: u32 = u32::MAX;

struct Layout {
    /// Number of instructions of each item, 0 if dropped.
    sizes: Vec<u32>,
    /// First instruction of each item, and of the end.
    starts: Vec<u32>,
}

impl Layout {
    fn assign_starts(&mut self) {
        self.starts.clear();
        let mut at = 0;
        for &size in &self.sizes {
            self.starts.push(at);
            at += if size == GOTO_LONG { 1 } else { size };
        }
        self.starts.push(at);
    }
}

/// Instructions of a far conditional jump: the inverse condition skips a `gotol`.
/// `JSET` has no inverse, so it skips a `goto` that skips the `gotol`.
fn long_size(insn: &Insn) -> u32 {
    if inverse(insn.code).is_some() { 2 } else { 3 }
}

fn inverse(code: u8) -> Option<u8> {
    let condition = match code & 0xf0 {
        op::JEQ => op::JNE,
        op::JNE => op::JEQ,
        op::JGT => op::JLE,
        op::JLE => op::JGT,
        op::JGE => op::JLT,
        op::JLT => op::JGE,
        _ => return None,
    };
    Some(code & 0x0f | condition)
}

fn write_item(
    insns: &mut Vec<Insn>,
    item: Item,
    size: u32,
    distance: impl Fn(Label) -> i64,
    limits: &Limits,
) -> Result<(), EmitError> {
    let (label, insn) = match item {
        Item::Plain(insn) => {
            insns.push(insn);
            return Ok(());
        }
        Item::Call(label) => {
            let from_next = distance(label) - 1;
            insns.push(Insn::call_routine(from_next as i32));
            return Ok(());
        }
        Item::Jump(insn, label) => (label, Some(insn)),
        Item::Goto(label) => (label, None),
    };
    // Jump offsets count from behind the jump's last instruction.
    let taken = if size == GOTO_LONG {
        1
    } else {
        i64::from(size)
    };
    let distance = distance(label) - taken;
    if size > 1 && !limits.long_jumps {
        return Err(EmitError::JumpTooFar { distance });
    }
    let near = distance as i16;
    let far = Insn::goto_long(distance as i32);
    match (insn, size) {
        (None, 1) => insns.push(Insn::goto(near)),
        (None, _) => insns.push(far),
        (Some(insn), 1) => insns.push(Insn { off: near, ..insn }),
        (Some(insn), 2) => {
            let code = inverse(insn.code).expect("two instructions mean that it has an inverse");
            insns.extend([
                Insn {
                    code,
                    off: 1,
                    ..insn
                },
                far,
            ]);
        }
        (Some(insn), _) => {
            insns.extend([Insn { off: 1, ..insn }, Insn::goto(1), far]);
        }
    }
    Ok(())
}
