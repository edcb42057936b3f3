//! The functions of libpcap, each in a line: what this library exports, and which library does it.
//!
//! Functions of the first list are the system's. Those of the second choose between weir's devices
//! and the system's, in `open`. Those of the third take a `pcap_t`: for one of weir's the function
//! of the same name in `ours` does it, for any other the system's. Behind `=` is the result without
//! the system's library.

use crate::types::{BpfProgram, Device, Dumper, ERROR, Handler, Pcap, PktHdr, Stat};
use libc::{FILE, addrinfo, c_char, c_int, c_long, c_uchar, c_uint, c_void, size_t};
use std::ptr::{null, null_mut};
use weir_filter::lang::cbpf::Insn;

macro_rules! functions {
    (
        forwarded {$(
            fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? $(= $missing:expr)?;
        )*}
        opening {$(
            fn $opens:ident($($opens_arg:ident: $opens_type:ty),*) $(-> $opens_result:ty)?
                $(= $opens_missing:expr)?;
        )*}
        of_captures {$(
            fn $own:ident($($own_arg:ident: $own_type:ty),*) $(-> $own_result:ty)?
                $(= $own_missing:expr)?;
        )*}
    ) => {
        /// The system's functions.
        ///
        /// # Safety
        /// As libpcap's function of each name.
        #[allow(dead_code)] // A function of `opening` may need no system's.
        pub(crate) mod real {
            use super::*;
            $(system!(fn $name($($arg: $type),*) $(-> $result)? $(= $missing)?);)*
            $(system!(fn $opens($($opens_arg: $opens_type),*) $(-> $opens_result)?
                $(= $opens_missing)?);)*
            $(system!(fn $own(p: *mut Pcap, $($own_arg: $own_type),*) $(-> $own_result)?
                $(= $own_missing)?);)*
        }
        $(
            #[doc = concat!("`", stringify!($name), "` of the system's library.")]
            ///
            /// # Safety
            /// As libpcap's function of this name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? {
                // SAFETY: the caller's arguments are those of the call.
                unsafe { real::$name($($arg),*) }
            }
        )*
        $(
            #[doc = concat!("`", stringify!($opens), "`, of weir's devices and of the system's.")]
            ///
            /// # Safety
            /// As libpcap's function of this name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $opens($($opens_arg: $opens_type),*) $(-> $opens_result)? {
                // SAFETY: the caller's arguments are those of the call.
                unsafe { crate::open::$opens($($opens_arg),*) }
            }
        )*
        $(
            #[doc = concat!("`", stringify!($own), "`, of weir's captures and of the system's.")]
            ///
            /// # Safety
            /// As libpcap's function of this name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $own(p: *mut Pcap, $($own_arg: $own_type),*)
            $(-> $own_result)? {
                // SAFETY: libpcap's callers use a handle until they close it, and not afterwards.
                match unsafe { crate::table::find(p) } {
                    // SAFETY: the caller's arguments are those of the call.
                    Some(capture) => unsafe { crate::ours::$own(capture, $($own_arg),*) },
                    // SAFETY: likewise.
                    None => unsafe { real::$own(p, $($own_arg),*) },
                }
            }
        )*
    };
}

/// Defines a call of the system's function of this name, which is looked up once.
macro_rules! system {
    (fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $(= $missing:expr)?) => {
        pub(crate) unsafe fn $name($($arg: $type),*) $(-> $result)? {
            static AT: crate::real::Symbol = crate::real::Symbol::new();
            let found = AT.find(concat!(stringify!($name), "\0"));
            if found.is_null() {
                return $($missing)?;
            }
            type Function = unsafe extern "C" fn($($type),*) $(-> $result)?;
            // SAFETY: libpcap's function of this name has this type (pcap/pcap.h).
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found) };
            // SAFETY: the caller's arguments are those of the call.
            unsafe { function($($arg),*) }
        }
    };
}

functions! {
    forwarded {
        // Filters.
        fn bpf_dump(program: *const BpfProgram, option: c_int);
        fn bpf_filter(insns: *const Insn, packet: *const c_uchar, len: c_uint, caplen: c_uint)
            -> c_uint = 0;
        fn bpf_image(insn: *const Insn, number: c_int) -> *mut c_char = null_mut();
        fn bpf_validate(insns: *const Insn, len: c_int) -> c_int = 0;
        fn pcap_compile_nopcap(snaplen: c_int, linktype: c_int, program: *mut BpfProgram,
            text: *const c_char, optimize: c_int, netmask: c_uint) -> c_int = ERROR;
        fn pcap_freecode(program: *mut BpfProgram);
        fn pcap_offline_filter(program: *const BpfProgram, header: *const PktHdr,
            packet: *const c_uchar) -> c_int = 0;
        // Files.
        fn pcap_dump(to: *mut c_uchar, header: *const PktHdr, packet: *const c_uchar);
        fn pcap_dump_close(to: *mut Dumper);
        fn pcap_dump_file(to: *mut Dumper) -> *mut FILE = null_mut();
        fn pcap_dump_flush(to: *mut Dumper) -> c_int = ERROR;
        fn pcap_dump_ftell(to: *mut Dumper) -> c_long = -1;
        fn pcap_dump_ftell64(to: *mut Dumper) -> i64 = -1;
        fn pcap_fopen_offline(file: *mut FILE, errbuf: *mut c_char) -> *mut Pcap = null_mut();
        fn pcap_fopen_offline_with_tstamp_precision(file: *mut FILE, precision: c_uint,
            errbuf: *mut c_char) -> *mut Pcap = null_mut();
        fn pcap_open_dead(linktype: c_int, snaplen: c_int) -> *mut Pcap = null_mut();
        fn pcap_open_dead_with_tstamp_precision(linktype: c_int, snaplen: c_int,
            precision: c_uint) -> *mut Pcap = null_mut();
        fn pcap_open_offline(path: *const c_char, errbuf: *mut c_char) -> *mut Pcap = null_mut();
        fn pcap_open_offline_with_tstamp_precision(path: *const c_char, precision: c_uint,
            errbuf: *mut c_char) -> *mut Pcap = null_mut();
        // Link types, timestamp types, messages.
        fn pcap_datalink_name_to_val(name: *const c_char) -> c_int = -1;
        fn pcap_datalink_val_to_description(linktype: c_int) -> *const c_char = null();
        fn pcap_datalink_val_to_description_or_dlt(linktype: c_int) -> *const c_char = null();
        fn pcap_datalink_val_to_name(linktype: c_int) -> *const c_char = null();
        fn pcap_free_datalinks(list: *mut c_int);
        fn pcap_free_tstamp_types(list: *mut c_int);
        fn pcap_tstamp_type_name_to_val(name: *const c_char) -> c_int = ERROR;
        fn pcap_tstamp_type_val_to_description(kind: c_int) -> *const c_char = null();
        fn pcap_tstamp_type_val_to_name(kind: c_int) -> *const c_char = null();
        fn pcap_init(options: c_uint, errbuf: *mut c_char) -> c_int = ERROR;
        fn pcap_statustostr(status: c_int) -> *const c_char = c"?".as_ptr();
        fn pcap_strerror(error: c_int) -> *const c_char = c"?".as_ptr();
        // Devices and names.
        fn pcap_freealldevs(list: *mut Device);
        fn pcap_lookupnet(device: *const c_char, net: *mut c_uint, mask: *mut c_uint,
            errbuf: *mut c_char) -> c_int = ERROR;
        fn pcap_ether_aton(text: *const c_char) -> *mut c_uchar = null_mut();
        fn pcap_ether_hostton(name: *const c_char) -> *mut c_uchar = null_mut();
        fn pcap_nametoaddr(name: *const c_char) -> *mut *mut c_uint = null_mut();
        fn pcap_nametoaddrinfo(name: *const c_char) -> *mut addrinfo = null_mut();
        fn pcap_nametoeproto(name: *const c_char) -> c_int = -1;
        fn pcap_nametollc(name: *const c_char) -> c_int = -1;
        fn pcap_nametonetaddr(name: *const c_char) -> c_uint = 0;
        fn pcap_nametoport(name: *const c_char, port: *mut c_int, protocol: *mut c_int)
            -> c_int = 0;
        fn pcap_nametoportrange(name: *const c_char, first: *mut c_int, last: *mut c_int,
            protocol: *mut c_int) -> c_int = 0;
        fn pcap_nametoproto(name: *const c_char) -> c_int = -1;
        fn pcap_next_etherent(file: *mut FILE) -> *mut c_void = null_mut();
    }
    opening {
        fn pcap_close(p: *mut Pcap);
        fn pcap_create(device: *const c_char, errbuf: *mut c_char) -> *mut Pcap = null_mut();
        fn pcap_findalldevs(to: *mut *mut Device, errbuf: *mut c_char) -> c_int = ERROR;
        fn pcap_lib_version() -> *const c_char = c"libpcap".as_ptr();
        fn pcap_lookupdev(errbuf: *mut c_char) -> *mut c_char = null_mut();
        fn pcap_open_live(device: *const c_char, snaplen: c_int, promisc: c_int,
            milliseconds: c_int, errbuf: *mut c_char) -> *mut Pcap = null_mut();
    }
    of_captures {
        fn pcap_activate() -> c_int = ERROR;
        fn pcap_breakloop();
        fn pcap_bufsize() -> c_int = ERROR;
        fn pcap_can_set_rfmon() -> c_int = ERROR;
        fn pcap_compile(program: *mut BpfProgram, text: *const c_char, optimize: c_int,
            netmask: c_uint) -> c_int = ERROR;
        fn pcap_datalink() -> c_int = ERROR;
        fn pcap_datalink_ext() -> c_int = ERROR;
        fn pcap_dispatch(count: c_int, handler: Handler, user: *mut c_uchar) -> c_int = ERROR;
        fn pcap_dump_fopen(file: *mut FILE) -> *mut Dumper = null_mut();
        fn pcap_dump_open(path: *const c_char) -> *mut Dumper = null_mut();
        fn pcap_dump_open_append(path: *const c_char) -> *mut Dumper = null_mut();
        fn pcap_file() -> *mut FILE = null_mut();
        fn pcap_fileno() -> c_int = -1;
        fn pcap_get_required_select_timeout() -> *const libc::timeval = null();
        fn pcap_get_selectable_fd() -> c_int = -1;
        fn pcap_get_tstamp_precision() -> c_int = 0;
        fn pcap_geterr() -> *mut c_char = null_mut();
        fn pcap_getnonblock(errbuf: *mut c_char) -> c_int = ERROR;
        fn pcap_inject(packet: *const c_void, len: size_t) -> c_int = ERROR;
        fn pcap_is_swapped() -> c_int = ERROR;
        fn pcap_list_datalinks(to: *mut *mut c_int) -> c_int = ERROR;
        fn pcap_list_tstamp_types(to: *mut *mut c_int) -> c_int = ERROR;
        fn pcap_loop(count: c_int, handler: Handler, user: *mut c_uchar) -> c_int = ERROR;
        fn pcap_major_version() -> c_int = ERROR;
        fn pcap_minor_version() -> c_int = ERROR;
        fn pcap_next(header: *mut PktHdr) -> *const c_uchar = null();
        fn pcap_next_ex(header: *mut *const PktHdr, packet: *mut *const c_uchar) -> c_int = ERROR;
        fn pcap_perror(prefix: *const c_char);
        fn pcap_sendpacket(packet: *const c_uchar, len: c_int) -> c_int = ERROR;
        fn pcap_set_buffer_size(bytes: c_int) -> c_int = ERROR;
        fn pcap_set_datalink(linktype: c_int) -> c_int = ERROR;
        fn pcap_set_immediate_mode(on: c_int) -> c_int = ERROR;
        fn pcap_set_promisc(on: c_int) -> c_int = ERROR;
        fn pcap_set_protocol_linux(protocol: c_int) -> c_int = ERROR;
        fn pcap_set_rfmon(on: c_int) -> c_int = ERROR;
        fn pcap_set_snaplen(bytes: c_int) -> c_int = ERROR;
        fn pcap_set_timeout(milliseconds: c_int) -> c_int = ERROR;
        fn pcap_set_tstamp_precision(precision: c_int) -> c_int = ERROR;
        fn pcap_set_tstamp_type(kind: c_int) -> c_int = ERROR;
        fn pcap_setdirection(direction: c_uint) -> c_int = ERROR;
        fn pcap_setfilter(program: *mut BpfProgram) -> c_int = ERROR;
        fn pcap_setnonblock(on: c_int, errbuf: *mut c_char) -> c_int = ERROR;
        fn pcap_snapshot() -> c_int = ERROR;
        fn pcap_stats(to: *mut Stat) -> c_int = ERROR;
    }
}
