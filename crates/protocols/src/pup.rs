//! Pup on ports and over UDP.

mod link;
mod node;
mod stream;

pub use link::{Link, LinkError};
pub use node::Node;
pub use stream::{Stream, StreamError};
