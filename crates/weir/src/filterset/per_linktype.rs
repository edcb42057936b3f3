//! Values for each link type: a filter refers to other bytes on another link
//! type, so it is compiled to another program, or refused.

use crate::report::format;
use std::fmt::Write;
use weir_wire::LinkType;

/// Largest number of link types in one input for which filters are compiled: a
/// file may contain 65,536, and each costs as much as the first.
pub(crate) const LINKTYPES_MAX: usize = 64;
/// Number of refusals of a link type that are kept for messages.
const REFUSALS_MAX: usize = 10;

/// A `T` for each link type, created for its first frame.
pub(crate) struct PerLinkType<T> {
    links: Vec<Link<T>>,
    /// Index of the previous frame's link type.
    last: usize,
    /// Number of frames of link types beyond the limit.
    beyond: u64,
}

/// The value for a link type.
pub(crate) struct Made<T> {
    pub(crate) it: T,
    /// The filters that are not valid for the link type.
    pub(crate) refusals: Refusals,
}

struct Link<T> {
    linktype: LinkType,
    made: Made<T>,
    frames: u64,
}

/// Filters that a link type refuses: their number, and the reasons of the
/// first.
#[derive(Default)]
pub(crate) struct Refusals {
    count: usize,
    first: Vec<String>,
}

impl Refusals {
    /// Adds a refused filter with the reason.
    pub(crate) fn add(&mut self, why: String) {
        self.count += 1;
        if self.first.len() < REFUSALS_MAX {
            self.first.push(why);
        }
    }
}

impl<T> PerLinkType<T> {
    /// No link type is known yet.
    pub(crate) fn new() -> PerLinkType<T> {
        PerLinkType {
            links: Vec::new(),
            last: 0,
            beyond: 0,
        }
    }

    /// Creates the value for the input's first link type, unless there is one.
    /// A filter that is not valid for it is a user error: the error has the
    /// reason.
    pub(crate) fn first(
        &mut self,
        linktype: LinkType,
        make: impl FnOnce(LinkType) -> Made<T>,
    ) -> Result<(), String> {
        if !self.links.is_empty() {
            return Ok(());
        }
        let mut made = make(linktype);
        if made.refusals.count > 0 {
            return Err(made.refusals.first.swap_remove(0));
        }
        self.add(linktype, made);
        Ok(())
    }

    /// Counts a frame of `linktype` and returns the link type's value; `None`
    /// if the limit is reached.
    #[inline]
    pub(crate) fn of(
        &mut self,
        linktype: LinkType,
        make: impl FnOnce(LinkType) -> Made<T>,
    ) -> Option<&mut T> {
        let same = |link: &Link<T>| link.linktype == linktype;
        if !self.links.get(self.last).is_some_and(same) && !self.turn_to(linktype, make) {
            return None;
        }
        let link = &mut self.links[self.last];
        link.frames += 1;
        Some(&mut link.made.it)
    }

    /// Sets `last` to the index of `linktype`; `false` if the limit is reached.
    #[cold]
    fn turn_to(&mut self, linktype: LinkType, make: impl FnOnce(LinkType) -> Made<T>) -> bool {
        let found = self.links.iter().position(|link| link.linktype == linktype);
        if let Some(found) = found {
            self.last = found;
        } else if self.links.len() < LINKTYPES_MAX {
            self.add(linktype, make(linktype));
        } else {
            self.beyond += 1;
            return false;
        }
        true
    }

    fn add(&mut self, linktype: LinkType, made: Made<T>) {
        self.last = self.links.len();
        self.links.push(Link {
            linktype,
            made,
            frames: 0,
        });
    }

    /// Each link type and its value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LinkType, &T)> {
        let links = self.links.iter();
        links.map(|link| (link.linktype, &link.made.it))
    }

    /// The frames that some filters did not process: a message for each link
    /// type that refused some, and one for link types beyond the limit. `by`
    /// describes a number of filters, if necessary.
    pub(crate) fn unjudged(&self, by: impl Fn(usize) -> String) -> Vec<String> {
        let refusing = |link: &&Link<T>| link.made.refusals.count > 0;
        let mut messages: Vec<String> = self
            .links
            .iter()
            .filter(refusing)
            .map(|link| {
                let Refusals { count, first } = &link.made.refusals;
                let mut message = format!(
                    "{} of link type {} not judged{}:",
                    format::frames(link.frames),
                    link.linktype,
                    by(*count)
                );
                for why in first {
                    let _ = write!(message, "\n{why}");
                }
                if *count > first.len() {
                    message += "\n…";
                }
                message
            })
            .collect();
        if self.beyond > 0 {
            messages.push(format!(
                "{} of other link types not judged: there are more than {LINKTYPES_MAX}, for which filters are compiled",
                format::frames(self.beyond)
            ));
        }
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(it: u32) -> Made<u32> {
        Made {
            it,
            refusals: Refusals::default(),
        }
    }

    #[test]
    fn each_link_type_is_made_once_and_later_ones_not_at_all() {
        let mut links = PerLinkType::new();
        let mut made = Vec::new();
        for _ in 0..3 {
            for linktype in 0..100 {
                let found = links.of(LinkType(linktype), |LinkType(number)| {
                    made.push(number);
                    whole(number)
                });
                let expected = (linktype < LINKTYPES_MAX as u32).then_some(linktype);
                assert_eq!(found.copied(), expected);
            }
        }
        assert!(made.into_iter().eq(0..LINKTYPES_MAX as u32));
        let said = links.unjudged(|_| String::new());
        assert_eq!(said.len(), 1);
        let frames = 3 * (100 - LINKTYPES_MAX);
        assert!(said[0].starts_with(&format!("{frames} frames")), "{said:?}");
    }

    #[test]
    fn of_many_refusals_the_first_are_kept() {
        let mut links = PerLinkType::new();
        let refusing = |_| {
            let mut made = whole(0);
            (0..1000).for_each(|filter| made.refusals.add(format!("filter {filter}")));
            made
        };
        assert_eq!(links.first(LinkType(7), refusing), Err("filter 0".into()));
        assert!(links.of(LinkType(7), refusing).is_some());
        assert_eq!(links.links[0].made.refusals.first.len(), REFUSALS_MAX);
        let said = links.unjudged(|count| format!(" by {count}"));
        assert!(said[0].starts_with("1 frame of link type"), "{said:?}");
        assert!(said[0].contains("by 1000:\nfilter 0\n"), "{said:?}");
        assert!(said[0].ends_with("filter 9\n…"), "{said:?}");
    }
}
