//! A server that gives back what it gets, on a TCP of its own:
//! `cargo run -p weir-socket --example echo -- tap0 192.0.2.5/24`

use std::io;
use weir_socket::{Net, TcpListener, link};
use weir_stack::Config;
use weir_wire::ethernet::Address;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(tap), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("usage: echo TAP ADDRESS/LEN".into());
    };
    let config = Config::new(Address([2, 0, 0, 0, 0, 5])).address(address.parse()?);
    let net = Net::new(link::Tap::open(&tap)?, &config)?;
    let listener = TcpListener::bind(&net, "0.0.0.0:7")?;
    eprintln!("ready");
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::spawn(move || io::copy(&mut &stream, &mut &stream));
    }
    Ok(())
}
