//! Published vectors: "The Use of Galois/Counter Mode (GCM) in IPsec ESP: test
//! cases" (draft-mcgrew-gcm-test-01), and RFC 7634 appendix A.

use weir_esp::algorithm::{Algorithm, Keymat};
use weir_esp::sa::{InboundSa, Lifetime, OutboundSa, SaConfig};

struct Vector {
    algorithm: Algorithm,
    keymat: &'static str,
    sequence: u64,
    is_extended: bool,
    packet: &'static str,
    /// Payload, padding, pad length and next header.
    text: &'static str,
}

const VECTORS: [Vector; 8] = [
    Vector {
        algorithm: Algorithm::Aes128Gcm,
        keymat: "4c80cdefbb5d10da906ac73c3613a6342e443b68",
        sequence: 0x8765_4321_0000_0000,
        is_extended: true,
        packet: "00004321000000004956ed7e3b244cfefecf537e729d5b07dc30df528dd22b76\
                 8d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d\
                 15b21e1884f5ff6247aeabb786b93bce61bc17d768fd9732459018148f6cbe72\
                 2fd04796562dfdb4",
        text: "45000048699a000080114db7c0a80102c0a801010a9bf15638d3010000010000\
               00000000045f736970045f756470037369700963796265726369747902646b00\
               0021000101020201",
    },
    Vector {
        algorithm: Algorithm::Aes128Gcm,
        keymat: "feffe9928665731c6d6a8f9467308308cafebabe",
        sequence: 0x0a,
        is_extended: false,
        packet: "0000a5f80000000afacedbaddecaf888deb22cd9b07c72c16e3a65beeb8df304\
                 a5a5897d33ae530f1ba76d5d114d2a5c3de81827c10e9a4f51330d0eec416642\
                 cfbb85a5b47e48a4ec3b9ba95d918bd183b70d3aa8bc6ee4c309e9d85a41ad4a",
        text: "4500003e698f000080114dccc0a80102c0a801010a980035002a2343b2d00100\
               00010000000000000373697009637962\
               65726369747902646b00000100010001",
    },
    Vector {
        algorithm: Algorithm::Aes256Gcm,
        keymat: "abbccddef00112233445566778899aababbccddef00112233445566778899aab\
                 11223344",
        sequence: 2,
        is_extended: false,
        packet: "4a2cbfe3000000020102030405060708ff425c9b724599df7a3bcd510194e00d\
                 6a78107f1b0b1cbf06efae9d65a5d763748a637985771d347f0545659f14e99d\
                 ef842d8eb335f4eecfdbf831824b4c4915956c96",
        text: "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee000000000\
               7002400020bf0000020405b40101040201020201",
    },
    Vector {
        algorithm: Algorithm::Aes128Gcm,
        keymat: "3de09874b388e6491988d0c3607eae1f57690e43",
        sequence: 0x1010_1010_1010_1010,
        is_extended: true,
        packet: "42f67e3f101010104e280000a2fca1a3fba2ca845e5df9f0f22c3e6e86dd831e\
                 1fc65792cd1af9130e1379ed369f071f35e034be95f112e4e7d05d35",
        text: "4500001c42a200008001441f406793b6e00000020a00f5ff01020201",
    },
    Vector {
        algorithm: Algorithm::Aes256Gcm,
        keymat: "abbccddef00112233445566778899aababbccddef00112233445566778899aab\
                 73616c74",
        sequence: 0x156f_3126_dd0d_b99b,
        is_extended: true,
        packet: "17405e67dd0db99b616e640169766563f2d69ecdbd5a0d5b8d5ef38bad4da58d\
                 1f278fde98ef67549d524a3018d9a57ff4d3a31ce673119e451626c2415771e3\
                 b7eebca614c89b35",
        text: "45080028732c00004006e9f90a0106120a01038f06b88023dd6bafbecb712602\
               50101f646d540001",
    },
    Vector {
        algorithm: Algorithm::Aes128Gcm,
        keymat: "7d773d00c144c525ac619d18c84a3f47d9664267",
        sequence: 0xffff_ffff,
        is_extended: false,
        packet: "335467aeffffffff43457e9182443bc6437f866bcb3f699fe9b0822bac961c45\
                 04bef270",
        text: "01020201",
    },
    Vector {
        algorithm: Algorithm::Aes256Gcm,
        keymat: "6c6567616c697a656d6172696a75616e61616e64646f69746265666f72656961\
                 7475726e",
        sequence: u64::MAX,
        is_extended: true,
        packet: "796b6963ffffffff333021696765746df97ab2aa356d8edce17644ac8c78e25d\
                 d24dedbb29ebf1b64a274b39b49c3a864cd3d78ca4ae68a32b42458fb57dbe82\
                 1dcc63b9d0937ba2945f669368661a329fb4c053",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
    },
    Vector {
        algorithm: Algorithm::ChaCha20Poly1305,
        keymat: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f\
                 a0a1a2a3",
        sequence: 5,
        is_extended: false,
        packet: "0102030400000005101112131415161724039428b97f417e3c13753a4f05087b\
                 67c352e6a7fab1b982d466ef407ae5c614ee8099d52844eb61aa95dfab4c02f7\
                 2aa71e7c4c4f64c9befe2facc638e8f3cbec163fac469b502773f6fb94e664da\
                 9165b82829f641e076aaa8266b7fb0f7b11b369907e1ad43",
        text: "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec10\
               0007362708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223\
               2425262728292a2b2c2d2e2f303132333435363701020204",
    },
];

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().collect();
    let pairs = digits.chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap())
        .collect()
}

impl Vector {
    fn config(&self) -> SaConfig {
        let packet = bytes(self.packet);
        SaConfig {
            spi: u32::from_be_bytes(*packet.first_chunk().unwrap()),
            algorithm: self.algorithm,
            keymat: Keymat::of_hex(self.keymat).unwrap(),
            is_extended: self.is_extended,
            window: 64,
            lifetime: Lifetime::UNLIMITED,
            sequence: self.sequence - 1,
        }
    }
}

#[test]
fn packets_of_the_vectors_are_opened() {
    for vector in &VECTORS {
        let (mut packet, text) = (bytes(vector.packet), bytes(vector.text));
        let mut sa = InboundSa::new(&vector.config(), 0).unwrap();
        let opened = sa.open(0, &mut packet).unwrap();
        let [.., padding, next] = *text else { panic!() };
        assert_eq!(opened.next_header, next, "{}", vector.packet);
        let end = text.len() - 2 - usize::from(padding);
        assert_eq!(packet[opened.payload], text[..end], "{}", vector.packet);
        assert_eq!(sa.sequence(), vector.sequence);
        // The same again is refused.
        assert!(sa.open(0, &mut bytes(vector.packet)).is_err());
    }
}

#[test]
fn packets_of_the_vectors_are_made() {
    for vector in &VECTORS {
        let (packet, text) = (bytes(vector.packet), bytes(vector.text));
        let iv = u64::from_be_bytes(*packet[8..].first_chunk().unwrap());
        let mask = iv ^ vector.sequence;
        let mut sa = OutboundSa::new(&vector.config(), 0, mask).unwrap();
        let [.., padding, next] = *text else { panic!() };
        let end = text.len() - 2 - usize::from(padding);
        let mut made = vec![9; 3];
        sa.seal(0, &text[..end], next, &mut made).unwrap();
        assert_eq!(made[3..], packet, "{}", vector.packet);
    }
}
