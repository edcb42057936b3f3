//! Routes and routing tables of hosts.

use super::device::Device;
use super::error::{Error, failed};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::net::Ipv4Addr;

impl Device {
    /// Routes these IPv4 networks of `prefix_len` bits to that router, by this
    /// device.
    ///
    /// # Errors
    /// If the device is down, or such a route exists.
    pub fn route_networks(
        &self,
        networks: impl IntoIterator<Item = Ipv4Addr>,
        prefix_len: u8,
        via: Ipv4Addr,
    ) -> Result<(), Error> {
        let routes = networks.into_iter().map(|network| {
            let mut message = self.route(RouteHeader::RT_TABLE_MAIN);
            message.header.destination_prefix_length = prefix_len;
            message.attributes.extend([
                RouteAttribute::Destination(network.into()),
                RouteAttribute::Gateway(via.into()),
            ]);
            RouteNetlinkMessage::NewRoute(message)
        });
        let made = self.host().requests(routes, NLM_F_CREATE | NLM_F_EXCL);
        let what = format!("routes to {via} out of `{}`", self.name());
        made.map_err(failed(what))
    }

    /// An IPv4 route by this device, in that table.
    fn route(&self, table: u8) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.table = table;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![RouteAttribute::Oif(self.index())];
        message
    }

    /// Adds a default IPv4 route by this device to that table.
    ///
    /// # Errors
    /// If the device is down, or the table has such a route.
    pub fn route_table(&self, table: u8) -> Result<(), Error> {
        let mut message = self.route(table);
        message.header.scope = RouteScope::Link;
        let message = RouteNetlinkMessage::NewRoute(message);
        let made = self.host().request(message, NLM_F_CREATE | NLM_F_EXCL);
        let what = format!("routing table {table} out of `{}`", self.name());
        made.map_err(failed(what)).map(drop)
    }

    /// Adds a rule: IPv4 packets received by this device are routed by that
    /// table.
    ///
    /// # Errors
    /// If such a rule exists.
    pub fn look_up_in(&self, table: u8) -> Result<(), Error> {
        let mut message = RuleMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.table = table;
        message.header.action = RuleAction::ToTable;
        message.attributes = vec![RuleAttribute::Iifname(self.name().to_owned())];
        let message = RouteNetlinkMessage::NewRule(message);
        let made = self.host().request(message, NLM_F_CREATE | NLM_F_EXCL);
        let what = format!(
            "routing what comes in at `{}` by table {table}",
            self.name()
        );
        made.map_err(failed(what)).map(drop)
    }
}
