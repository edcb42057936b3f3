//! Tables that sort, scroll and are searched.

use crate::monitor::report::{end_name, kind_name};
use crate::monitor::session::Session;
use crate::report::format;
use std::cmp::Ordering;
use weir_monitor::{Counts, Row};

/// Which table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Talkers,
    Conversations,
    Protocols,
    Ports,
    Processes,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    /// Its width in cells; 0 shares what the others leave.
    pub(super) width: u16,
    pub(super) is_number: bool,
    /// Columns of a higher number are left out first where there is little room.
    pub(super) rank: u8,
}

const fn text(name: &'static str, width: u16, rank: u8) -> Column {
    Column {
        name,
        width,
        is_number: false,
        rank,
    }
}

const fn number(name: &'static str, width: u16, rank: u8) -> Column {
    Column {
        name,
        width,
        is_number: true,
        rank,
    }
}

const TALKERS: [Column; 7] = [
    text("host", 0, 0),
    number("sent", 11, 3),
    number("sent bytes", 13, 2),
    number("received", 11, 3),
    number("recv bytes", 13, 2),
    number("bytes", 13, 0),
    number("rate", 10, 1),
];
const CONVERSATIONS: [Column; 8] = [
    text("protocol", 9, 1),
    text("a", 0, 0),
    text("b", 0, 0),
    text("name", 18, 3),
    text("process", 12, 4),
    number("frames", 9, 2),
    number("bytes", 13, 0),
    number("rate", 10, 2),
];
const PROTOCOLS: [Column; 5] = [
    text("protocol", 0, 0),
    number("frames", 12, 1),
    number("bytes", 14, 0),
    number("share", 8, 2),
    number("rate", 10, 2),
];
const PORTS: [Column; 10] = [
    number("port", 5, 0),
    number("pid", 7, 1),
    number("uid", 6, 3),
    text("interface", 9, 2),
    text("filter", 0, 0),
    number("priority", 8, 4),
    text("frames are", 10, 3),
    number("queue", 9, 5),
    number("delivered", 12, 1),
    number("lost", 9, 0),
];
const PROCESSES: [Column; 6] = [
    number("pid", 8, 0),
    text("process", 0, 0),
    number("uid", 6, 2),
    number("frames", 10, 2),
    number("bytes", 14, 0),
    number("rate", 10, 1),
];

impl Kind {
    pub(super) fn columns(self) -> &'static [Column] {
        match self {
            Kind::Talkers => &TALKERS,
            Kind::Conversations => &CONVERSATIONS,
            Kind::Protocols => &PROTOCOLS,
            Kind::Ports => &PORTS,
            Kind::Processes => &PROCESSES,
        }
    }

    /// The column that sorts at first.
    fn first_sort(self) -> usize {
        match self {
            Kind::Talkers => 5,
            Kind::Conversations => 6,
            Kind::Protocols => 2,
            Kind::Ports => 8,
            Kind::Processes => 4,
        }
    }

    fn len(self, session: &Session) -> usize {
        let model = &session.model;
        match self {
            Kind::Talkers => model.talkers().rows().len(),
            Kind::Conversations => model.conversations().rows().len(),
            Kind::Protocols => model.protocols().rows().len(),
            Kind::Ports => session
                .facts()
                .and_then(|facts| facts.ports.as_ref().ok())
                .map_or(0, Vec::len),
            Kind::Processes => 0,
        }
    }

    /// The frames that no row counts.
    pub(super) fn overflow(self, session: &Session) -> Counts {
        match self {
            Kind::Talkers => session.model.talkers().overflow(),
            Kind::Conversations => session.model.conversations().overflow(),
            Kind::Protocols => session.model.protocols().overflow(),
            Kind::Ports | Kind::Processes => Counts::default(),
        }
    }
}

/// A value to sort by and to show.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    Text(String),
    Number(u64),
    /// Bytes a second.
    Rate(f64),
    /// Per cent.
    Share(f64),
}

impl Value {
    fn order(&self, other: &Value) -> Ordering {
        match (self, other) {
            (Value::Text(a), Value::Text(b)) => a.cmp(b),
            (Value::Number(a), Value::Number(b)) => a.cmp(b),
            (Value::Rate(a) | Value::Share(a), Value::Rate(b) | Value::Share(b)) => a.total_cmp(b),
            _ => Ordering::Equal,
        }
    }

    pub(super) fn shown(&self) -> String {
        match self {
            Value::Text(text) => text.clone(),
            Value::Number(number) => format::grouped(*number),
            Value::Rate(bytes) => bits(*bytes * 8.0),
            Value::Share(share) => format!("{share:.1} %"),
        }
    }
}

/// Bits a second with a unit, in at most 9 cells: `12.3 Mb/s`.
pub(super) fn bits(mut bits: f64) -> String {
    if bits < 0.5 {
        return "-".to_owned();
    }
    for unit in ["b/s", "kb/s", "Mb/s", "Gb/s"] {
        if bits < 999.5 {
            let digits = usize::from(bits < 99.95 && unit != "b/s");
            return format!("{bits:.digits$} {unit}");
        }
        bits /= 1000.0;
    }
    format!("{bits:.1} Tb/s")
}

/// A table's state on the screen.
#[derive(Debug)]
pub(super) struct Sheet {
    pub(super) kind: Kind,
    pub(super) sort: usize,
    pub(super) is_descending: bool,
    /// The rows' numbers in the table, in order.
    order: Vec<u32>,
    /// The place of the selection in `order`.
    pub(super) selected: usize,
    pub(super) offset: usize,
    /// The processes, which are no table of the model.
    processes: Vec<Vec<Value>>,
}

impl Sheet {
    pub(super) fn new(kind: Kind) -> Sheet {
        Sheet {
            kind,
            sort: kind.first_sort(),
            is_descending: true,
            order: Vec::new(),
            selected: 0,
            offset: 0,
            processes: Vec::new(),
        }
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// The selected row's number in the model's table.
    pub(super) fn selected_row(&self) -> Option<usize> {
        self.order.get(self.selected).map(|row| *row as usize)
    }

    /// Sorts anew; the selection stays on its row, unless it is the first, which stays on top.
    pub(super) fn refresh(&mut self, session: &Session) {
        if self.kind == Kind::Processes {
            let rows = session.processes().0.into_iter();
            let rows = rows.map(|(owner, counts, rate)| {
                vec![
                    Value::Number(owner.pid.into()),
                    Value::Text(owner.name.clone()),
                    Value::Number(owner.uid.into()),
                    Value::Number(counts.frames),
                    Value::Number(counts.bytes),
                    Value::Rate(rate),
                ]
            });
            self.processes = rows.collect();
        }
        let len = match self.kind {
            Kind::Processes => self.processes.len(),
            other => other.len(session),
        };
        let selected = self.selected_row().filter(|_| self.selected > 0);
        let mut keys: Vec<(Value, u32)> = Vec::with_capacity(len);
        for row in 0..len {
            keys.push((self.value(session, row, self.sort), row as u32));
        }
        let is_descending = self.is_descending;
        keys.sort_unstable_by(|(a, a_row), (b, b_row)| {
            let order = if is_descending {
                b.order(a)
            } else {
                a.order(b)
            };
            order.then(a_row.cmp(b_row))
        });
        self.order = keys.into_iter().map(|(_, row)| row).collect();
        self.selected = match selected {
            Some(row) => self
                .order
                .iter()
                .position(|one| *one as usize == row)
                .unwrap_or(0),
            None => 0,
        };
    }

    /// A value of the row with that number in the table.
    fn value(&self, session: &Session, row: usize, column: usize) -> Value {
        let model = &session.model;
        match self.kind {
            Kind::Talkers => talker(&model.talkers().rows()[row], column),
            Kind::Conversations => {
                let row = &model.conversations().rows()[row];
                match column {
                    0 => Value::Text(kind_name(row.key.kind)),
                    1 => Value::Text(end_name(&row.key.a, row.key.a_port)),
                    2 => Value::Text(end_name(&row.key.b, row.key.b_port)),
                    3 => Value::Text(row.note.as_deref().unwrap_or_default().to_owned()),
                    4 => {
                        let owner = session.owner(&row.key);
                        let owner = owner.map(|owner| format!("{} {}", owner.pid, owner.name));
                        Value::Text(owner.unwrap_or_default())
                    }
                    5 => Value::Number(row.total().frames),
                    6 => Value::Number(row.total().bytes),
                    _ => Value::Rate(row.rate),
                }
            }
            Kind::Protocols => {
                let row = &model.protocols().rows()[row];
                match column {
                    0 => Value::Text(row.key.to_string()),
                    1 => Value::Number(row.out.frames),
                    2 => Value::Number(row.out.bytes),
                    3 => {
                        let all = model.totals().bytes.max(1);
                        Value::Share(row.out.bytes as f64 * 100.0 / all as f64)
                    }
                    _ => Value::Rate(row.rate),
                }
            }
            Kind::Ports => port(session, row, column),
            Kind::Processes => self.processes[row][column].clone(),
        }
    }

    /// The cells of the row at a place in the order.
    pub(super) fn cells(&self, session: &Session, place: usize) -> Option<Vec<Value>> {
        let row = *self.order.get(place)? as usize;
        // The table may have begun anew since the rows were put in order.
        let len = match self.kind {
            Kind::Processes => self.processes.len(),
            other => other.len(session),
        };
        if row >= len {
            return None;
        }
        let columns = 0..self.kind.columns().len();
        Some(
            columns
                .map(|column| self.value(session, row, column))
                .collect(),
        )
    }

    /// Moves the selection.
    pub(super) fn go(&mut self, to: isize) {
        let last = self.order.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(to).min(last);
    }

    /// Selects the next row that contains the text, in any case; `false` if none does.
    pub(super) fn search(&mut self, session: &Session, text: &str) -> bool {
        let wanted = text.to_lowercase();
        let len = self.order.len();
        for step in 1..=len {
            let place = (self.selected + step) % len;
            let cells = self.cells(session, place).unwrap_or_default();
            if cells
                .iter()
                .any(|cell| cell.shown().to_lowercase().contains(&wanted))
            {
                self.selected = place;
                return true;
            }
        }
        false
    }
}

fn talker(row: &Row<weir_monitor::Host>, column: usize) -> Value {
    match column {
        0 => Value::Text(row.key.to_string()),
        1 => Value::Number(row.out.frames),
        2 => Value::Number(row.out.bytes),
        3 => Value::Number(row.back.frames),
        4 => Value::Number(row.back.bytes),
        5 => Value::Number(row.total().bytes),
        _ => Value::Rate(row.rate),
    }
}

fn port(session: &Session, row: usize, column: usize) -> Value {
    let ports = session.facts().and_then(|facts| facts.ports.as_ref().ok());
    let Some(port) = ports.and_then(|ports| ports.get(row)) else {
        return Value::Text(String::new());
    };
    match column {
        0 => Value::Number(port.port.into()),
        1 => Value::Number(port.pid.into()),
        2 => Value::Number(port.uid.into()),
        3 => Value::Text(port.interface.clone()),
        4 => Value::Text(port.filter.clone()),
        5 => Value::Number(port.priority.into()),
        6 => Value::Text(if port.copy { "copied" } else { "taken" }.to_owned()),
        7 => Value::Number(port.queue),
        8 => Value::Number(port.delivered),
        _ => Value::Number(port.lost),
    }
}
