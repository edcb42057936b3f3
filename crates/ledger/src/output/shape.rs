//! Which records an output has, under which names, and put together how.

use crate::Group;
use jiff::tz::TimeZone;
use std::collections::BTreeMap;
use weir_meter::{Direction, OwnerKind};

/// An output's treatment of the ledger's records: filter, then classification, then aggregation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Which records.
    pub filter: Filter,
    /// New names of services, by the ledger's. Several may get the same one.
    pub classes: BTreeMap<String, String>,
    /// The new name of all services that `classes` does not name.
    pub other_class: Option<String>,
    /// The columns by which the records of a chunk are grouped; the others are empty, and counts are
    /// added. `None` for no aggregation.
    pub by: Option<Vec<Column>>,
    /// The spans of time that stand in place of the periods' start and end.
    pub span: Option<Span>,
}

/// Spans of time by the clock of a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Hours, days or months.
    pub group: Group,
    /// The zone.
    pub zone: TimeZone,
}

/// A column by which aggregation groups records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Column {
    /// Kind of owner and subscriber.
    Subscriber,
    /// The session, with its keys, Class and Chargeable-User-Identity.
    Session,
    /// The service, under its new name.
    Service,
    /// Up or down.
    Direction,
}

impl Column {
    /// The column of this name.
    pub fn of_name(name: &str) -> Option<Column> {
        match name {
            "subscriber" => Some(Column::Subscriber),
            "session" => Some(Column::Session),
            "service" => Some(Column::Service),
            "direction" => Some(Column::Direction),
            _ => None,
        }
    }
}

/// Which records: those that fit all that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of one of these counters.
    pub counters: Option<Vec<String>>,
    /// Of one of these kinds of owners.
    pub owners: Option<Vec<OwnerKind>>,
    /// Of one of these subscribers.
    pub subscribers: Option<Vec<String>>,
    /// Of one of these services, by the ledger's names.
    pub services: Option<Vec<String>>,
    /// In this direction.
    pub direction: Option<Direction>,
}

impl Filter {
    /// Whether it accepts all.
    pub fn is_all(&self) -> bool {
        *self == Filter::default()
    }

    pub(crate) fn accepts_counter(&self, counter: &str) -> bool {
        among(self.counters.as_deref(), counter)
    }

    pub(crate) fn accepts_owner(&self, kind: OwnerKind, subscriber: &str) -> bool {
        let kinds = self.owners.as_deref();
        kinds.is_none_or(|kinds| kinds.contains(&kind))
            && among(self.subscribers.as_deref(), subscriber)
    }

    pub(crate) fn accepts_service(&self, service: &str) -> bool {
        among(self.services.as_deref(), service)
    }

    pub(crate) fn accepts_direction(&self, direction: Direction) -> bool {
        self.direction.is_none_or(|only| only == direction)
    }
}

fn among(some: Option<&[String]>, one: &str) -> bool {
    some.is_none_or(|some| some.iter().any(|it| it == one))
}

impl Shape {
    /// The name of a service in the output.
    pub(crate) fn class<'a>(&'a self, service: &'a str) -> &'a str {
        let class = self.classes.get(service).or(self.other_class.as_ref());
        class.map_or(service, String::as_str)
    }

    /// Whether sums of the output may differ from the ledger's.
    pub(crate) fn is_in_part(&self) -> bool {
        let keeps_direction = |by: &Vec<Column>| by.contains(&Column::Direction);
        !self.filter.is_all() || self.by.as_ref().is_some_and(|by| !keeps_direction(by))
    }
}
