//! The lab: hosts, links, bridges, processes, and that nothing is left.

mod leftovers;
mod nobody;
mod talk;
mod topology;
mod truth;
