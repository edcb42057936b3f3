//! Ports of TCP, UDP and SCTP over IPv6 (without extension headers) and IPv4 (first
//! fragments only).

use super::*;

impl Generator<'_> {
    /// The transport of the qualifier; `None` means any transport.
    pub(super) fn port_transport(&self, quals: Quals) -> Fault<Option<u8>> {
        match quals.proto {
            None => Ok(None),
            Some(Proto::Tcp) => Ok(Some(proto::TCP)),
            Some(Proto::Udp) => Ok(Some(proto::UDP)),
            Some(Proto::Sctp) => Ok(Some(proto::SCTP)),
            Some(other) => {
                let what = format!("`{}`", quals.kind.word());
                let error = self.no_qualifier(other.word(), &what);
                Err(error.expected("`tcp`, `udp`, `sctp` or nothing before it"))
            }
        }
    }

    /// A test for ports between `first` and `last`, in either order.
    pub(super) fn port(
        &mut self,
        dir: Dir,
        transport: Option<u8>,
        first: u16,
        last: u16,
    ) -> Fault<PredRef> {
        let v6 = self.port6(dir, transport, first, last)?;
        let v4 = self.port4(dir, transport, first, last)?;
        Ok(self.code.or(v6, v4))
    }

    pub(super) fn port4(
        &mut self,
        dir: Dir,
        transport: Option<u8>,
        first: u16,
        last: u16,
    ) -> Fault<PredRef> {
        let carried = self.link_type(link::IP)?;
        let transport = self.transport(transport, proto::IP_PROTOCOL);
        let unfragmented = self.first_fragment();
        let ports = self.ports(From::Transport4, dir, first, last);
        let transport = self.code.and(transport, unfragmented);
        let ports = self.code.and(transport, ports);
        Ok(self.code.and(carried, ports))
    }

    pub(super) fn port6(
        &mut self,
        dir: Dir,
        transport: Option<u8>,
        first: u16,
        last: u16,
    ) -> Fault<PredRef> {
        let carried = self.link_type(link::IP6)?;
        let transport = self.transport(transport, proto::IP6_NEXT);
        let ports = self.ports(From::Transport6, dir, first, last);
        let ports = self.code.and(transport, ports);
        Ok(self.code.and(carried, ports))
    }

    fn transport(&mut self, transport: Option<u8>, field: u32) -> PredRef {
        let wanted: &[u8] = match &transport {
            Some(one) => std::slice::from_ref(one),
            None => &[proto::TCP, proto::UDP, proto::SCTP],
        };
        let mut any = PredRef::FALSE;
        for &number in wanted {
            let this = self.equal(From::Network, field, Width::B1, number.into());
            any = self.code.or(any, this);
        }
        any
    }

    fn ports(&mut self, from: From, dir: Dir, first: u16, last: u16) -> PredRef {
        let (low, high) = (u32::from(first.min(last)), u32::from(first.max(last)));
        self.directed(dir, |this, source| {
            let offset = if source { 0 } else { 2 };
            if low == high {
                return this.equal(from, offset, Width::B2, low);
            }
            let above = this.compare(from, offset, Width::B2, Cmp::Ge, low);
            let below = this.compare(from, offset, Width::B2, Cmp::Le, high);
            this.code.and(above, below)
        })
    }
}
