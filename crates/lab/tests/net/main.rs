//! The lab: hosts, links, bridges, processes, and that nothing is left.

mod leftovers;
mod topology;
mod traffic;
mod truth;
mod unprivileged;
