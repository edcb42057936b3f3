//! `protochain`: a protocol after a chain of extension headers.
//!
//! libpcap emits a loop, which the kernel refuses. Here the chain is unrolled to
//! [`HEADERS_MAX`] headers. A frame with more headers is rejected at once, like a frame
//! whose chain leads beyond its captured bytes.

use super::*;

/// Maximum number of extension headers before the protocol.
pub(super) const HEADERS_MAX: usize = 16;

/// An offset at which a load rejects every frame; positive also as a signed number.
const BEYOND_EVERY_FRAME: u32 = 0x7fff_ffff;

const AUTHENTICATION: u32 = 51;
/// Hop-by-hop options, routing, fragment, destination options (RFC 8200 §4).
const EXTENSIONS: [u32; 4] = [0, 43, proto::FRAGMENT, 60];

/// The registers of a walk along the chain: next protocol, and its position.
#[derive(Clone, Copy)]
struct Walk {
    next: Register,
    position: Register,
    /// Offset of the network header, to which `position` is relative.
    network: u32,
}

impl Generator<'_> {
    pub(super) fn protocol_chain(
        &mut self,
        qualifier: Option<Proto>,
        number: u32,
    ) -> Fault<PredRef> {
        match qualifier {
            None => {
                let v4 = self.protocol_chain(Some(Proto::Ip), number)?;
                let v6 = self.protocol_chain(Some(Proto::Ip6), number)?;
                return Ok(self.code.or(v4, v6));
            }
            Some(Proto::Ip | Proto::Ip6) => {}
            Some(other) => {
                let error = self.no_qualifier(other.word(), "`protochain`");
                return Err(error.expected("`ip`, `ip6` or nothing before it"));
            }
        }
        self.check_max("IP protocol", number, 0xff)?;
        if self.layout.payload.register.is_some() {
            return Err(self.error("`protochain` cannot be tested inside Geneve or VXLAN"));
        }
        self.code.unoptimised = true;
        let ip6 = qualifier == Some(Proto::Ip6);
        let carried = self.link_type(if ip6 { link::IP6 } else { link::IP })?;
        if carried == PredRef::FALSE {
            return Ok(PredRef::FALSE);
        }
        let walk = Walk {
            next: self.code.register(),
            position: self.code.register(),
            network: self.layout.network().constant,
        };
        let start = self.chain_start(walk, ip6);
        let mut chain = self.chain_end(walk, number, ip6);
        // Built from the last step to the first; each step contains the next.
        for _ in 0..HEADERS_MAX {
            let here = self.next_is(walk, number);
            let onward = self.chain_step(walk, ip6);
            let later = self.code.and(onward, chain);
            chain = self.code.or(here, later);
        }
        let chain = self.code.and(start, chain);
        Ok(self.code.and(carried, chain))
    }

    fn chain_start(&mut self, walk: Walk, ip6: bool) -> PredRef {
        let begin = self.code.begin();
        let field = if ip6 {
            proto::IP6_NEXT
        } else {
            proto::IP_PROTOCOL
        };
        let next = self.load(From::Network, field, Width::B1);
        self.code.set(walk.next, next);
        if ip6 {
            self.code.set(walk.position, IP6_HEADER);
        } else {
            let length = self.ip_header_len();
            self.code.set(walk.position, length);
        }
        self.code.effect(begin)
    }

    /// The last step: the protocol, or no extension header, or too many headers.
    fn chain_end(&mut self, walk: Walk, number: u32, ip6: bool) -> PredRef {
        let here = self.next_is(walk, number);
        let mut more = self.next_is(walk, AUTHENTICATION);
        if ip6 {
            let extension = self.extension(walk);
            more = self.code.or(extension, more);
        }
        let begin = self.code.begin();
        let beyond = self.code.op(Op::Load {
            width: Width::B1,
            base: None,
            index: None,
            offset: BEYOND_EVERY_FRAME,
        });
        self.code.set(walk.next, beyond);
        let rejected = self.code.effect(begin);
        let too_many = self.code.and(more, rejected);
        self.code.or(here, too_many)
    }

    fn extension(&mut self, walk: Walk) -> PredRef {
        let mut any = PredRef::FALSE;
        for extension in EXTENSIONS {
            let this = self.next_is(walk, extension);
            any = self.code.or(any, this);
        }
        any
    }

    fn next_is(&mut self, walk: Walk, number: u32) -> PredRef {
        let begin = self.code.begin();
        let next = self.code.op(Op::Get(walk.next));
        self.code.test(begin, Cmp::Eq, next, number)
    }

    /// Skips one header; fails if the header is not skippable.
    fn chain_step(&mut self, walk: Walk, ip6: bool) -> PredRef {
        // The length is in units of four bytes, minus two (RFC 4302 §2.2).
        let authentication = self.next_is(walk, AUTHENTICATION);
        let passed = self.pass_header(walk, 2, 2);
        let mut onward = self.code.and(authentication, passed);
        if ip6 {
            // The length is in units of eight bytes, minus one (RFC 8200 §4).
            let extension = self.extension(walk);
            let passed = self.pass_header(walk, 1, 3);
            let extension = self.code.and(extension, passed);
            onward = self.code.or(extension, onward);
        }
        onward
    }

    fn pass_header(&mut self, walk: Walk, less: u32, shift: u32) -> PredRef {
        let begin = self.code.begin();
        let position = self.code.op(Op::Get(walk.position));
        let mut byte = |offset| {
            self.code.op(Op::Load {
                width: Width::B1,
                base: Some(position),
                index: None,
                offset: walk.network + offset,
            })
        };
        let (next, length) = (byte(0), byte(1));
        let words = self.code.bin(BinOp::Add, length, less);
        let bytes = self.code.bin(BinOp::Shl, words, shift);
        let position = self.code.bin(BinOp::Add, bytes, position);
        self.code.set(walk.next, next);
        self.code.set(walk.position, position);
        self.code.effect(begin)
    }
}
