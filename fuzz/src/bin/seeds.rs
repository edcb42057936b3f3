//! Writes the seed corpora into `fuzz/seeds`: `cargo run --bin seeds`.
//!
//! They come from the shared corpus of expressions and from its own few
//! frames and capture files, so that nothing but this program makes them.

#[path = "../../../crates/esp/tests/common/vici_tape.rs"]
mod vici_tape;
#[path = "../../../crates/esp/tests/common/xfrm_tape.rs"]
mod xfrm_tape;

use std::path::{Path, PathBuf};

use weir_broker::protocol::encode;
use weir_filter::lang::cbpf::{self, Form, Order};
use weir_filter::lang::cspf::{self, Dialect};
use weir_filter::lang::expr::{Context, compile};
use weir_fuzz::input::{FewNames, with_frame};
use weir_lab::corpus;
use weir_lab::rules::FiveTuple;
use weir_wire::LinkType;

/// Seeds of one target, at most.
const EACH: usize = 60;

fn main() -> std::io::Result<()> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/seeds"));
    write(&root, "expr", expressions())?;
    write(&root, "cbpf", classic())?;
    write(&root, "cspf", stack())?;
    write(&root, "ir", programs())?;
    write(&root, "program", tapes())?;
    write(&root, "plan", tapes())?;
    write(&root, "stack", tapes())?;
    write(&root, "route", tapes())?;
    write(&root, "chain", chains())?;
    write(&root, "xfrm", databases())?;
    write(&root, "vici", strongswans())?;
    write(&root, "box", boxes())?;
    write(&root, "router", routers())?;
    write(&root, "ports", ports())?;
    write(&root, "capture", captures())?;
    write(
        &root,
        "views",
        vec![frame()[14..].to_vec(), frame()[34..].to_vec()],
    )?;
    write(&root, "monitor", monitored()?)?;
    write(&root, "message", messages())
}

fn write(root: &Path, target: &str, seeds: Vec<Vec<u8>>) -> std::io::Result<()> {
    let folder = root.join(target);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    for (index, seed) in seeds.iter().take(EACH).enumerate() {
        std::fs::write(folder.join(format!("{index:03}")), seed)?;
    }
    println!("{target}: {} seeds", seeds.len().min(EACH));
    Ok(())
}

/// Frames of many protocols, of the files with which the monitor's lines are tested.
fn monitored() -> std::io::Result<Vec<Vec<u8>>> {
    /// Ethernet, the second of the named link types.
    const ETHERNET: u8 = 1;
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../crates/monitor/tests/frame_summary/frames"
    );
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|ending| ending == "txt"));
    files.sort();
    let mut seeds = vec![[vec![ETHERNET], frame()].concat()];
    for path in files {
        let text = std::fs::read_to_string(path)?;
        for part in format!("\n{text}").split("\n# ").skip(1) {
            let digits: String = part
                .lines()
                .skip(1)
                .take_while(|line| !line.starts_with('='))
                .collect();
            seeds.push([vec![ETHERNET], hexadecimal(&digits)].concat());
        }
    }
    let step = seeds.len().div_ceil(EACH);
    Ok(seeds.into_iter().step_by(step).collect())
}

/// A TCP segment to port 80 in an Ethernet frame.
fn frame() -> Vec<u8> {
    let tuple = FiveTuple {
        src: 0x0a00_020f,
        dst: 0xc0a8_0101,
        src_port: 50738,
        dst_port: 80,
        protocol: 6,
    };
    tuple.frame()
}

/// Every `len / REVALIDATE_BATCH`th text of the hand-written lists.
fn texts() -> Vec<String> {
    let lists = ["realistic", "precedence", "encapsulation", "errors"];
    let all: Vec<String> = lists.into_iter().flat_map(corpus::family).collect();
    let step = all.len().div_ceil(EACH);
    all.into_iter().step_by(step).collect()
}

/// Lives of a chain, as `crates/chain/tests/common/tape.rs` reads them: a frame, what answers it,
/// and time, for each set of options.
fn chains() -> Vec<Vec<u8>> {
    // Kind, source, destination, ports, flags, length of the payload.
    let frame = |inward: bool, fields: [u8; 6]| {
        let step = if inward { 0x86 } else { 0x1e };
        [&[step][..], &fields, &[0]].concat()
    };
    let answer = |at: u8, flags: u8, payload: &[u8]| {
        [&[0x1a, at, flags, payload.len() as u8], payload].concat()
    };
    let tcp = [0, 0x01, 0xa1, 0xe1, 0x00, 0x02];
    let udp = [2, 0x02, 0xa2, 0xe2, 0x42, 0];
    let echo = [3, 0x03, 0xa1, 7, 7, 8];
    let of_service = [0, 0xa3, 0x60, 0xe9, 0x00, 0x02];
    let life = |options: u8| {
        [
            &[options][..],
            &frame(false, tcp),
            &answer(0, 0x12, b""),
            &frame(false, udp),
            &answer(0, 0x10, b""),
            &frame(false, echo),
            &[0x10, 20],
            &frame(true, of_service),
            &answer(1, 0x12, b""),
            &answer(2, 0x12, b"HTTP/1.1 200 OK"),
            &[0x01, 0x52],
            &[0x10, 5],
            &frame(true, of_service),
            &[0x18, 90],
            &frame(false, tcp),
        ]
        .concat()
    };
    [0, 0x21, 0x3f, 0x08, 0x12, 0x04, 0x61]
        .into_iter()
        .map(life)
        .collect()
}

/// Messages that Linux and strongSwan have sent: each by itself, and all of a file.
fn databases() -> Vec<Vec<u8>> {
    let files = [
        include_str!("../../../crates/esp/tests/xfrm/kernel.txt"),
        include_str!("../../../crates/esp/tests/xfrm/strongswan.txt"),
    ];
    let message = |line: &str| {
        let (kind, digits) = line.split_once(' ').expect("type and content");
        let kind = u16::from_str_radix(&kind[2..], 16).expect("hexadecimal digits");
        (kind, hexadecimal(digits))
    };
    let mut seeds = Vec::new();
    for file in files {
        let lines = file.lines().filter(|line| !line.starts_with('#'));
        let messages: Vec<_> = lines.map(message).collect();
        seeds.push(xfrm_tape::tape(&messages));
        seeds.extend(messages.chunks(1).map(xfrm_tape::tape));
    }
    seeds
}

fn hexadecimal(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).expect("ASCII");
        u8::from_str_radix(pair, 16).expect("hexadecimal digits")
    });
    pairs.collect()
}

/// What strongSwan says of a CHILD_SA in each of its states, of a policy, and of nothing.
fn strongswans() -> Vec<Vec<u8>> {
    use vici_tape::{LOG, child, encode, list, listed, tape, value};
    use weir_esp::vici::{Node, Section};
    let event = |name: &str, section: &Section| {
        let mut packet = [&[7, name.len() as u8][..], name.as_bytes()].concat();
        encode(section, &mut packet).expect("short texts");
        packet
    };
    // The end of a list.
    let end = vec![1];
    let states = ["INSTALLED", "REKEYED", "DELETING"].map(|state| {
        let sa = child("1", state, ["b129729f", "c9808e16"]);
        tape(LOG, &[event("list-sa", &listed(vec![sa])), end.clone()])
    });
    let shunt = |mode: &str| {
        let texts = ["10.2.0.0/16[udp/53]", "fd00::/8[6/1024-2047]"];
        let policy = Section(vec![
            value("mode", mode),
            list("local-ts", texts[0]),
            list("remote-ts", texts[usize::from(mode == "DROP")]),
        ]);
        let named = Section(vec![("c/shunt".into(), Node::Section(policy))]);
        tape("", &[event("list-policy", &named), end.clone()])
    };
    let shunts = ["PASS", "DROP", "TUNNEL"].map(shunt);
    let nothing = tape(LOG, &[vec![5], end.clone()]);
    states.into_iter().chain(shunts).chain([nothing]).collect()
}

fn expressions() -> Vec<Vec<u8>> {
    let seed = |(index, text): (usize, String)| {
        let frame = with_frame(&frame(), 64, text.as_bytes());
        // Ethernet, the second of the named link types, more often than not.
        let which = if index % 2 == 0 { 1 } else { index as u8 };
        [vec![which], frame].concat()
    };
    texts().into_iter().enumerate().map(seed).collect()
}

fn compiled() -> Vec<weir_filter::ir::Program> {
    let context = Context::new(LinkType::EN10MB).with_names(&FewNames);
    let programs = texts()
        .into_iter()
        .filter_map(|text| compile(&text, &context).ok());
    programs.collect()
}

/// By hand, one of every form: `ip`, `tcp dst port 80`, a loop, a jump out.
fn classic() -> Vec<Vec<u8>> {
    let listings = [
        "(000) ldh      [12]\n(001) jeq      #0x800           jt 2\tjf 3\n\
         (002) ret      #262144\n(003) ret      #0\n",
        "(000) ldh      [12]\n(001) jeq      #0x800           jt 2\tjf 10\n\
         (002) ldb      [23]\n(003) jeq      #0x6             jt 4\tjf 10\n\
         (004) ldh      [20]\n(005) jset     #0x1fff          jt 10\tjf 6\n\
         (006) ldxb     4*([14]&0xf)\n(007) ldh      [x + 16]\n\
         (008) jeq      #0x50            jt 9\tjf 10\n(009) ret      #262144\n\
         (010) ret      #0\n",
        "(000) ld       #pktlen\n(001) st       M[3]\n(002) tax\n(003) ldx      M[3]\n\
         (004) div      #3\n(005) sub      x\n(006) neg\n(007) ret\n",
    ];
    let mut seeds = Vec::new();
    for listing in listings {
        let insns = cbpf::parse(listing).unwrap_or_else(|error| panic!("{error}\n{listing}"));
        let forms = [Form::Listing, Form::C, Form::Decimal];
        let texts = forms.map(|form| cbpf::text(&insns, form).into_bytes());
        let contents = texts
            .into_iter()
            .chain([cbpf::to_bytes(&insns, Order::Little)]);
        seeds.extend(contents.map(|contents| with_frame(&frame(), 64, &contents)));
    }
    for decimal in [
        "2\n5 0 0 4294967295\n6 0 0 0\n",
        "1\n21 9 9 0\n",
        "1\n6 0 0 65535\n",
    ] {
        seeds.push(with_frame(&frame(), 64, decimal.as_bytes()));
    }
    seeds
}

/// The paper's figures, in every dialect, as text and as words.
fn stack() -> Vec<Vec<u8>> {
    let texts = [
        "PUSHWORD+1, PUSHLIT | EQ, 2,\nPUSHWORD+3, PUSH00FF | AND,\nPUSHZERO | GT,\n\
         PUSHWORD+3, PUSH00FF | AND,\nPUSHLIT | LE, 100,\nAND,\nAND\n",
        "PUSHWORD+8, PUSHLIT | CAND, 35,\nPUSHWORD+7, PUSHZERO | CAND,\n\
         PUSHWORD+1, PUSHLIT | EQ, 2\n",
        "PUSHWORD+6\nPUSHLIT 0x800\nEQ\n",
    ];
    let mut seeds = Vec::new();
    for (which, dialect) in Dialect::ALL.into_iter().enumerate() {
        for text in texts {
            let seed = |flag: u8, program: &[u8]| {
                let frame = with_frame(&frame(), 64, program);
                [vec![which as u8 | flag, 2], frame].concat()
            };
            seeds.push(seed(0, text.as_bytes()));
            if let Ok(filter) = cspf::assemble(text, dialect) {
                // The flag shifts the choice of dialect, so choose again.
                let which = (0..128u8)
                    .find(|&n| Dialect::ALL[usize::from(n | 0x80) % Dialect::ALL.len()] == dialect);
                let words = filter.to_bytes(Order::Big);
                let frame = with_frame(&frame(), 64, &words);
                let which = which.expect("every dialect can be chosen") | 0x80;
                seeds.push([vec![which, 2], frame].concat());
            }
        }
    }
    seeds
}

fn programs() -> Vec<Vec<u8>> {
    let mut texts: Vec<String> = compiled().iter().map(ToString::to_string).collect();
    texts.retain(|text| text.len() < 2000);
    let seeds = texts
        .iter()
        .map(|text| with_frame(&frame(), 64, text.as_bytes()));
    seeds.collect()
}

fn tapes() -> Vec<Vec<u8>> {
    let mut rng = weir_lab::rng::Rng::new(0x7a9e);
    let mut tape = |len: usize| (0..len).map(|_| rng.word() as u8).collect();
    (0..20).map(|index| tape(50 * (index + 1))).collect()
}

fn ports() -> Vec<Vec<u8>> {
    let one = "[[port]]\nname = \"web\"\nfilter = \"tcp port 80 or 443\"\n";
    let more = "[[port]]\nname = \"all\"\nfilter = ''\npriority = 3\ncopy = true\n\n\
                [[port]]\nname = \"pup\"\nfilter = 'PUSHONE'\nlang = \"cspf\"\n";
    let wrong = "[[port]]\nname = 1\n";
    [one, more, wrong, ""]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}

/// The examples, a balancer and policies of each kind.
fn boxes() -> Vec<Vec<u8>> {
    let balance = "outside = \"eth1\"\n[kernel]\nroutes = true\n[[link]]\nname = \"eth0\"\n\
                   [[link]]\nname = \"eth1\"\n[[stage]]\nkind = \"balance\"\n\
                   service = \"192.0.2.1:80\"\nprobe = \"200ms\"\nfall = 2\n[stage.http]\n\
                   path = \"/health\"\nstatus = \"200,300-399\"\n[[stage.server]]\n\
                   to = \"10.0.0.2:80\"\nweight = 3\n[[stage.server]]\nto = \"10.0.0.3:80\"\n\
                   draining = true\n[[stage]]\nkind = \"ipsec\"\nsa = \"sa.toml\"\n";
    let key: String = (1..37).map(|byte| format!("{byte:02x}")).collect();
    let sas = format!(
        "[[tunnel]]\nname = \"t\"\nlocal = \"192.0.2.1\"\nremote = \"198.51.100.1\"\n\
         udp = true\n[[sa]]\ntunnel = \"t\"\ndirection = \"out\"\nalgorithm = \"aes256gcm\"\n\
         spi = 1000\nesn = true\nkey = \"{key}\"\n[[policy]]\nmatch = \"net 10.0.0.0/8\"\n\
         action = \"protect\"\ntunnel = \"t\"\n[[policy]]\nmatch = \"udp port 53\"\n\
         action = \"bypass\"\n[[policy]]\nmatch = \"\"\naction = \"discard\"\n"
    );
    let texts = [
        include_str!("../../../examples/box.toml"),
        include_str!("../../../examples/nat64.toml"),
        include_str!("../../../examples/shape.toml"),
        balance,
        &sas,
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// The router of the documentation, and the smallest.
fn routers() -> Vec<Vec<u8>> {
    let text = include_str!("../../../docs/reference/router.md");
    let example = text.split("```toml\n").nth(1);
    let example = example.and_then(|from| from.split("```").next());
    let example = example.expect("docs/reference/router.md has a router.toml");
    let least = "[[link]]\nname = \"a\"\naddresses = [\"192.0.2.1/24\"]\n";
    [example, least]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}

/// A few requests and an answer, as they are on the socket.
fn messages() -> Vec<Vec<u8>> {
    let texts = [
        r#"{"id":1,"ask":{"open":{"interface":"lo","filter":{"text":""},"ring":4096}}}"#,
        r#"{"id":2,"ask":{"close":{"port":1}}}"#,
        r#"{"id":3,"ask":{"ports":{"after":null}}}"#,
        r#"{"goodbye":{"reason":"the end"}}"#,
    ];
    let message = |text: &str| {
        let mut bytes = encode(&()).expect("an empty message has room");
        bytes.truncate(bytes.len() - "null".len());
        bytes.extend(text.as_bytes());
        bytes
    };
    texts.map(message).to_vec()
}

/// Small files: classic in both byte orders and resolutions, and pcapng.
fn captures() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for magic in [0xa1b2_c3d4_u32, 0xa1b2_3c4d] {
        let words = [magic, 0x0004_0002, 0, 0, 65535, 1, 1, 2, 64, 64];
        let little: Vec<u8> = words
            .iter()
            .flat_map(|word: &u32| word.to_le_bytes())
            .collect();
        seeds.push([little, frame()].concat());
        let words = [magic, 0x0002_0004, 0, 0, 65535, 1, 1, 2, 64, 64];
        let big: Vec<u8> = words
            .iter()
            .flat_map(|word: &u32| word.to_be_bytes())
            .collect();
        seeds.push([big, frame()].concat());
    }
    seeds.push(pcapng());
    seeds
}

/// A section with one interface, an enhanced and a simple packet.
fn pcapng() -> Vec<u8> {
    let block = |kind: u32, body: Vec<u8>| {
        let len = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes()[..], &len, &body, &len].concat()
    };
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let section = words(&[0x1a2b_3c4d, 0x0000_0001, u32::MAX, u32::MAX]);
    // if_tsresol 9, then the end of options.
    let interface = words(&[1, 65535, 0x0001_0009, 9, 0]);
    let enhanced = [words(&[0, 0, 1000, 64, 64]), frame()].concat();
    let simple = [words(&[64]), frame()].concat();
    [
        block(0x0a0d_0d0a, section),
        block(1, interface),
        block(6, enhanced),
        block(3, simple),
    ]
    .concat()
}
