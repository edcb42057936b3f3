//! Texts as `box.toml`, `shape.toml` or `sa.toml`. Made for the fuzz target `box` and the test `configs`.

use std::net::Ipv4Addr;
use weir_apps::chain::BoxConfig;
use weir_apps::shape::config::ShapeConfig;
use weir_chain::config::Context;
use weir_filter::lang::expr::NoNames;

/// Addresses of the outside.
const OUTSIDE: [Ipv4Addr; 1] = [Ipv4Addr::new(203, 0, 113, 1)];

/// Longest message, in bytes, beside what it repeats of the text.
const MESSAGE_MAX: usize = 2_000;

/// Reads a text as each of the files: what is taken makes a chain or a gateway, or is refused; each refusal has
/// a message, whose position is in the text.
pub(crate) fn run(text: &str) {
    match BoxConfig::parse(text, &NoNames) {
        Ok(config) => {
            let context = Context {
                seed: 1,
                epoch: 0,
                outside: &OUTSIDE,
                networks: &config.networks(|_| None),
                ipsec: None,
                is_one_armed: false,
            };
            if let Err(error) = config.chain(&context) {
                refused(text, error.at, &error.message);
            }
        }
        Err(error) => refused(text, error.at, &error.message),
    }
    if let Err(error) = ShapeConfig::parse(text, &NoNames) {
        refused(text, error.at, &error.message);
    }
    match weir_esp::Config::parse(text, &NoNames, 1500) {
        Ok(config) => {
            weir_esp::Gateway::new(&config, 0, 1).expect("a gateway accepts what was read");
        }
        Err(error) => {
            refused(text, error.at, &error.message);
            // A key is not shown, also not a part of one.
            assert!(!error.message.contains("0102030405060708"), "{error:?}");
        }
    }
}

fn refused(text: &str, at: Option<usize>, message: &str) {
    assert!(!message.is_empty());
    assert!(message.len() <= MESSAGE_MAX + 4 * text.len(), "{message}");
    // A place at the end is that of what is missing.
    assert!(at.is_none_or(|at| at <= text.len()), "{at:?}: {message}");
}
