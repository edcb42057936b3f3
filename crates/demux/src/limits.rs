//! Upper bounds: whatever is bound, a plan costs bounded memory and time.

/// Bindings in one plan.
pub const BINDINGS_MAX: usize = 1 << 22;
/// Table entries in one subtable; a binding has one entry for each accept path.
pub const ENTRIES_MAX: usize = 1 << 24;
/// Subtables in one plan.
pub const SUBTABLES_MAX: usize = 1 << 12;
/// Distinct expressions over the frame in one plan.
pub const EXPRS_MAX: usize = 1 << 16;
/// Bindings in one plan whose program is opaque.
pub const OPAQUE_MAX: usize = 1 << 16;
/// Bindings in one plan that run one after the other because that costs less
/// than tables; with more, all move to tables.
pub const LINEAR_MAX: usize = 64;
/// Bindings down to which a plan that had more has to shrink before some run
/// directly again.
pub const LINEAR_RESUME: usize = 16;
/// A plan that ever had more bindings than this at a time keeps its tables
/// when it shrinks.
pub const LINEAR_PEAK_MAX: usize = 1 << 12;

/// Accept paths of one filter; with more, its program is opaque.
pub const PATHS_MAX: usize = 512;
/// What the search for one filter's accept paths does, counted in
/// instructions that it looks at, conditions that it copies where paths fork,
/// and conditions and loads that it gathers for each path; with more, the
/// filter's program is opaque. A step is some tens of nanoseconds.
pub const STEPS_MAX: usize = 1 << 16;
/// Instructions of a program that [`Filter::from_plain`](crate::Filter::from_plain)
/// analyses before it is optimised; a longer one seldom comes to keys.
pub const PLAIN_LEN_MAX: usize = 1 << 7;
/// Distinct expressions in one filter; with more, its program is opaque.
pub const FILTER_EXPRS_MAX: usize = 256;
/// Depth of one expression; with more, the filter's program is opaque.
pub const EXPR_DEPTH_MAX: usize = 16;
/// Conditions on one accept path; with more, the filter's program is opaque.
pub const CONDITIONS_MAX: usize = 128;
/// Fields in one key; with more, the filter's program is opaque.
pub const FIELDS_MAX: usize = 24;
/// Distinct values of one field of one subtable that are counted; a field with
/// more is not known to have one value only when the others have gone.
pub const COUNTED_VALUES_MAX: usize = 1024;
/// Such values of all fields of all subtables together; a field that gets one
/// more is not counted for as long as its subtable lasts.
pub const LISTED_MAX: usize = 1 << 18;
