//! Bytes as a client of the broker sends them, and as the broker answers: read
//! or refused; what is read is written and reads back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;
use weir_broker::protocol::{Request, ServerMessage, decode, encode};

fuzz_target!(|data: &[u8]| {
    same::<Request>(data);
    same::<ServerMessage>(data);
});

fn same<T: DeserializeOwned + Serialize + PartialEq + Debug>(data: &[u8]) {
    let Ok(message) = decode::<T>(data) else {
        return;
    };
    // What was short may be written longer than a message may be.
    if let Ok(bytes) = encode(&message) {
        assert_eq!(decode::<T>(&bytes).as_ref(), Ok(&message));
    }
}
