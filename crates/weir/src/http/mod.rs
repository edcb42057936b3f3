//! HTTP/1.1 (RFC 9110, RFC 9112), as much as `weir get` and `weir serve` need.

pub(crate) mod body;
pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod driver;
pub(crate) mod files;
pub(crate) mod output;
pub(crate) mod request;
pub(crate) mod server;
pub(crate) mod url;

/// Bytes of a request's or response's head.
pub(crate) const HEAD_LEN_MAX: usize = 64 << 10;
/// Fields of a head.
pub(crate) const FIELDS_MAX: usize = 128;

/// The values of a field, by its name in whatever letters.
pub(crate) fn values<'a>(
    fields: &'a [httparse::Header<'a>],
    name: &'a str,
) -> impl Iterator<Item = &'a [u8]> {
    let named = fields
        .iter()
        .filter(move |field| field.name.eq_ignore_ascii_case(name));
    named.map(|field| field.value)
}

/// Whether a list field has this member, in whatever letters.
pub(crate) fn lists(fields: &[httparse::Header<'_>], name: &str, member: &str) -> bool {
    values(fields, name).any(|value| {
        let mut members = value.split(|byte| *byte == b',');
        members.any(|one| one.trim_ascii().eq_ignore_ascii_case(member.as_bytes()))
    })
}
