//! Messages of the kernel's databases of IPsec, also damaged. Made for the fuzz target `xfrm` and the
//! test `xfrm`.
#![allow(dead_code, reason = "each user has its part")]

use weir_esp::config::SAS_MAX;
use weir_esp::negotiated::Mapper;
use weir_esp::policy::{Action, POLICIES_MAX};
use weir_esp::xfrm::{Database, FLUSHPOLICY, FLUSHSA};
use weir_esp::{Config, Gateway};

/// Bytes of netlink in front of a message's content.
const HEADER: usize = 16;

/// A datagram of netlink with these messages.
pub(crate) fn tape(messages: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut tape = Vec::new();
    for (kind, content) in messages {
        tape.extend(((HEADER + content.len()) as u32).to_ne_bytes());
        tape.extend(kind.to_ne_bytes());
        tape.extend([0; 10]);
        tape.extend(content);
        tape.resize(tape.len().next_multiple_of(4), 0);
    }
    tape
}

/// Runs the messages of a datagram: a gateway accepts what the databases have after each, and after
/// all is removed they are empty.
pub(crate) fn run<'m>(messages: impl Iterator<Item = (u16, &'m [u8])>) {
    let mut database = Database::default();
    let mut mapper = Mapper::default();
    for (kind, content) in messages {
        if database.take(kind, content) {
            accepted(&database.config(&mut mapper, 1500));
        }
    }
    database.take(FLUSHSA, &[0]);
    database.take(FLUSHPOLICY, &[]);
    // Attribute 16: the policies of another type.
    let sub = [
        &10_u16.to_ne_bytes()[..],
        &16_u16.to_ne_bytes(),
        &[1, 0, 0, 0],
    ]
    .concat();
    for kind in 0..=u8::MAX {
        let mut sub = sub.clone();
        sub[4] = kind;
        sub.extend([0; 4]);
        database.take(FLUSHPOLICY, &sub);
    }
    let config = database.config(&mut mapper, 1500);
    accepted(&config);
    assert!(config.sas.is_empty(), "an SA stays");
    assert_eq!(config.policies.len(), 1, "a policy stays");
    assert!(!matches!(config.policies[0].action, Action::Protect(_)));
}

fn accepted(config: &Config) {
    assert!(config.policies.len() <= POLICIES_MAX && config.sas.len() <= SAS_MAX);
    Gateway::new(config, 0, 1).expect("a gateway accepts it");
}
