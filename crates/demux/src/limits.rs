//! Upper bounds that keep the memory and time of a plan bounded for any
//! bindings.

/// Number of bindings in one plan.
pub const BINDINGS_MAX: usize = 1 << 22;
/// Number of table entries in one subtable; a binding has one for each accept
/// path.
pub const ENTRIES_MAX: usize = 1 << 24;
/// Number of subtables in one plan.
pub const SUBTABLES_MAX: usize = 1 << 12;
/// Number of distinct expressions over the frame in one plan.
pub const EXPRS_MAX: usize = 1 << 16;
/// Number of bindings in one plan whose program is opaque.
pub const OPAQUE_MAX: usize = 1 << 16;
/// Number of bindings in one plan whose programs run one after the other, since
/// that costs less than tables; with more, all of them move to tables.
pub const LINEAR_MAX: usize = 64;
/// Number of bindings to which a plan that exceeded `LINEAR_MAX` has to shrink
/// before programs run one after the other again.
pub const LINEAR_RESUME: usize = 16;
/// Number of bindings beyond which a plan, once it has had more at one time,
/// keeps its tables when it shrinks.
pub const LINEAR_PEAK_MAX: usize = 1 << 12;

/// Number of accept paths of one filter; with more, its program is opaque.
pub const PATHS_MAX: usize = 512;
/// Number of steps of the search for one filter's accept paths: instructions
/// visited, conditions copied where paths fork, and conditions and loads
/// gathered for each path. With more, the filter's program is opaque. A step
/// takes some tens of nanoseconds.
pub const STEPS_MAX: usize = 1 << 16;
/// Number of instructions of a program that
/// [`Filter::from_plain`](crate::Filter::from_plain) analyses before optimising
/// it; a longer program seldom consists of keys only.
pub const PLAIN_LEN_MAX: usize = 1 << 7;
/// Number of distinct expressions in one filter; with more, its program is
/// opaque.
pub const FILTER_EXPRS_MAX: usize = 256;
/// Depth of one expression; with more, the filter's program is opaque.
pub const EXPR_DEPTH_MAX: usize = 16;
/// Number of conditions on one accept path; with more, the filter's program is
/// opaque.
pub const CONDITIONS_MAX: usize = 128;
/// Number of fields in one key; with more, the filter's program is opaque.
pub const FIELDS_MAX: usize = 24;
/// Number of distinct values that are counted of one field of one subtable. A
/// field that exceeds it stays uncounted, so a later single value is not
/// noticed.
pub const COUNTED_VALUES_MAX: usize = 1024;
/// Number of counted values of all fields of all subtables of a plan. A field
/// that would exceed it stays uncounted as long as its subtable exists.
pub const LISTED_MAX: usize = 1 << 18;
