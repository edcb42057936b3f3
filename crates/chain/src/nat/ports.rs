//! Ports of the pool, in blocks. A block belongs to one subscriber at a time,
//! for all transports, so one line of the log names the subscriber of each of
//! its ports (RFC 6888 §4).

use super::config::{FIRST_PORT, NatConfig, PORTS};
use super::inside::Inside;
use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use weir_wire::rng::SplitMix64;

/// A block of a pool's address, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockId {
    pub(super) pool: u16,
    pub(super) block: u16,
}

/// The ports of one block that are in use, by transport.
#[derive(Clone, Debug, Default)]
struct Block {
    used: [Vec<u64>; 3],
    count: u32,
}

/// The free and used blocks of one address.
#[derive(Debug)]
struct PoolAddress {
    address: Ipv4Addr,
    blocks: Vec<Block>,
    /// Blocks that no subscriber has; the next one is given from the front.
    free: VecDeque<u16>,
    /// Ports of static forwards, by transport, in order.
    forwarded: [Vec<u16>; 3],
}

/// All ports of the pool.
#[derive(Debug)]
pub(super) struct Ports {
    addresses: Vec<PoolAddress>,
    /// Ports of a block.
    pub(super) size: u32,
    rest: u64,
    /// Blocks given back, with the time from which they are free again.
    resting: VecDeque<(u64, BlockId)>,
    rng: SplitMix64,
}

impl Ports {
    pub(super) fn new<A: Inside>(config: &NatConfig<A>, seed: u64) -> Ports {
        let count = (PORTS / config.block) as u16;
        let addresses = config.pool.iter().map(|&address| {
            let mut forwarded: [Vec<u16>; 3] = Default::default();
            let here = config.forwards.iter().filter(|f| f.outside.0 == address);
            for forward in here {
                forwarded[forward.transport.index()].push(forward.outside.1);
            }
            forwarded.iter_mut().for_each(|ports| ports.sort_unstable());
            PoolAddress {
                address,
                blocks: vec![Block::default(); count.into()],
                free: (0..count).collect(),
                forwarded,
            }
        });
        Ports {
            addresses: addresses.collect(),
            size: config.block,
            rest: config.block_rest,
            resting: VecDeque::new(),
            rng: SplitMix64::new(seed),
        }
    }

    pub(super) fn address(&self, pool: u16) -> Ipv4Addr {
        self.addresses[usize::from(pool)].address
    }

    /// Number of blocks that no subscriber has and that do not rest.
    pub(super) fn free_blocks(&self) -> usize {
        self.addresses
            .iter()
            .map(|address| address.free.len())
            .sum()
    }

    /// The address of the pool for a new subscriber: the one with the most free
    /// blocks; `None` if there is none.
    pub(super) fn choose_address(&mut self, now: u64) -> Option<u16> {
        self.wake(now);
        let numbered = (0..).zip(&self.addresses);
        // Of several the first.
        let (number, best) = numbered.reduce(|best, other| {
            if other.1.free.len() > best.1.free.len() {
                other
            } else {
                best
            }
        })?;
        (!best.free.is_empty()).then_some(number)
    }

    /// A free block of an address, for a subscriber.
    pub(super) fn allocate(&mut self, now: u64, pool: u16) -> Option<BlockId> {
        self.wake(now);
        let block = self.addresses[usize::from(pool)].free.pop_front()?;
        let id = BlockId { pool, block };
        self.prepare(id);
        Some(id)
    }

    /// Makes room for a block's ports, if it is not in use; static forwards have theirs.
    fn prepare(&mut self, id: BlockId) {
        let size = self.size;
        let address = &mut self.addresses[usize::from(id.pool)];
        let block = id.block;
        let words = size.div_ceil(64) as usize;
        let place = &mut address.blocks[usize::from(block)];
        if place.count > 0 {
            return;
        }
        place.used = std::array::from_fn(|_| vec![0; words]);
        let first = first_port(size, block);
        for (used, forwarded) in place.used.iter_mut().zip(&address.forwarded) {
            for port in forwarded {
                if let Some(at) = port.checked_sub(first).filter(|at| u32::from(*at) < size) {
                    used[usize::from(at) / 64] |= 1 << (at % 64);
                }
            }
        }
    }

    /// The first and last port of a block.
    pub(super) fn range(&self, block: u16) -> (u16, u16) {
        let first = first_port(self.size, block);
        (first, first + (self.size - 1) as u16)
    }

    /// A free port of a block, of the parity of `like` if there is one (RFC 4787
    /// REQ-4), at random (RFC 6056).
    pub(super) fn take_port(&mut self, id: BlockId, transport: usize, like: u16) -> Option<u16> {
        let size = self.size;
        let start = (self.rng.bits() % u64::from(size)) as u32;
        let first = first_port(size, id.block);
        let address = &mut self.addresses[usize::from(id.pool)];
        let block = &mut address.blocks[usize::from(id.block)];
        let used = &mut block.used[transport];
        let parity = like.wrapping_sub(first) & 1;
        let masks = match parity {
            0 => [0x5555_5555_5555_5555, u64::MAX],
            _ => [0xaaaa_aaaa_aaaa_aaaa, u64::MAX],
        };
        let at = masks
            .into_iter()
            .find_map(|mask| free_bit(used, size, start, mask))?;
        used[at as usize / 64] |= 1 << (at % 64);
        block.count += 1;
        Some(first + at as u16)
    }

    /// Gives a port back; returns whether it was the last one of its block.
    pub(super) fn put_port(&mut self, id: BlockId, transport: usize, port: u16) -> bool {
        let at = usize::from(port - first_port(self.size, id.block));
        let address = &mut self.addresses[usize::from(id.pool)];
        let block = &mut address.blocks[usize::from(id.block)];
        block.used[transport][at / 64] &= !(1 << (at % 64));
        block.count -= 1;
        block.count == 0
    }

    /// The block of a port.
    pub(super) fn block_of(&self, port: u16) -> u16 {
        (u32::from(port - FIRST_PORT) / self.size) as u16
    }

    /// Gives a block back, without ports in use.
    pub(super) fn release(&mut self, now: u64, id: BlockId) {
        let address = &mut self.addresses[usize::from(id.pool)];
        address.blocks[usize::from(id.block)] = Block::default();
        self.resting.push_back((now.saturating_add(self.rest), id));
    }

    /// The blocks that rest: until when, of which address.
    pub(super) fn resting(&self) -> impl Iterator<Item = (u64, Ipv4Addr, u16)> {
        let resting = self.resting.iter();
        resting.map(|(until, id)| (*until, self.address(id.pool), id.block))
    }

    /// The number of an address of the pool.
    pub(super) fn pool_of(&self, address: Ipv4Addr) -> Option<u16> {
        let mut numbered = (0..).zip(&self.addresses);
        numbered.find_map(|(number, it)| (it.address == address).then_some(number))
    }

    /// The block of a port of the pool; `None` if subscribers do not get that port.
    pub(super) fn block_with(&self, pool: u16, port: u16) -> Option<BlockId> {
        let block = u32::from(port.checked_sub(FIRST_PORT)?) / self.size;
        let block = block as u16;
        let count = self.addresses.get(usize::from(pool))?.blocks.len();
        (usize::from(block) < count).then_some(BlockId { pool, block })
    }

    /// Takes a port of a block that is in use, or that [`keep`](Self::keep) will take from the
    /// free ones; `false` if it is taken.
    pub(super) fn take_this(&mut self, id: BlockId, transport: usize, port: u16) -> bool {
        self.prepare(id);
        let at = usize::from(port - first_port(self.size, id.block));
        let address = &mut self.addresses[usize::from(id.pool)];
        let block = &mut address.blocks[usize::from(id.block)];
        let (word, bit) = (&mut block.used[transport][at / 64], 1 << (at % 64));
        let is_free = *word & bit == 0;
        if is_free {
            *word |= bit;
            block.count += 1;
        }
        is_free
    }

    /// Takes the blocks that have ports in use from the free ones, and lets others rest: until
    /// when, of which address.
    pub(super) fn keep(&mut self, now: u64, resting: impl Iterator<Item = (u64, Ipv4Addr, u16)>) {
        let longest = now.saturating_add(self.rest);
        let mut until_by_block: HashMap<(u16, u16), u64> = HashMap::new();
        for (until, address, block) in resting {
            if let Some(pool) = self.pool_of(address) {
                until_by_block.insert((pool, block), until.min(longest));
            }
        }
        let mut all: Vec<(u64, BlockId)> = Vec::new();
        for (pool, address) in (0..).zip(&mut self.addresses) {
            let blocks = &address.blocks;
            address.free.retain(|&block| {
                let until = until_by_block.get(&(pool, block));
                let is_free = blocks[usize::from(block)].count == 0;
                if let Some(until) = until.filter(|_| is_free) {
                    all.push((*until, BlockId { pool, block }));
                }
                is_free && until.is_none()
            });
        }
        // Those that were given back meanwhile rest the longest.
        all.sort_by_key(|(until, _)| *until);
        all.extend(self.resting.drain(..));
        self.resting = all.into();
    }

    /// Frees the blocks that have rested.
    fn wake(&mut self, now: u64) {
        while let Some(&(until, id)) = self.resting.front()
            && until <= now
        {
            self.resting.pop_front();
            self.addresses[usize::from(id.pool)]
                .free
                .push_back(id.block);
        }
    }
}

fn first_port(size: u32, block: u16) -> u16 {
    (u32::from(FIRST_PORT) + size * u32::from(block)) as u16
}

/// The first clear bit of `used` at or behind `start`, around the end, among
/// the bits of each word that `mask` has; bits from `size` on do not exist.
fn free_bit(used: &[u64], size: u32, start: u32, mask: u64) -> Option<u32> {
    let count = used.len();
    let first = start as usize / 64;
    // The first word comes twice: from `start` on, and up to it.
    for step in 0..=count {
        let at = (first + step) % count;
        let mut free = !used[at] & mask;
        if step == 0 {
            free &= u64::MAX << (start % 64);
        }
        let bit = at as u32 * 64 + free.trailing_zeros();
        if free != 0 && bit < size {
            return Some(bit);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(block: u32) -> Ports {
        let config: NatConfig = NatConfig {
            pool: vec![Ipv4Addr::new(203, 0, 113, 1), Ipv4Addr::new(203, 0, 113, 2)],
            block,
            ..NatConfig::default()
        };
        Ports::new(&config, 1)
    }

    #[test]
    fn every_port_of_a_block_is_given_once() {
        for size in [16, 100, 1024, PORTS] {
            let mut ports = ports(size);
            let id = ports.allocate(0, 0).unwrap();
            let (first, last) = ports.range(id.block);
            let mut given: Vec<u16> = (0..size)
                .map(|like| ports.take_port(id, 1, like as u16).unwrap())
                .collect();
            assert_eq!(ports.take_port(id, 1, 1), None);
            assert!(ports.take_port(id, 0, 1).is_some(), "TCP has its own");
            given.sort_unstable();
            assert_eq!(given, (first..=last).collect::<Vec<u16>>());
        }
    }

    #[test]
    fn parity_is_kept_while_there_is_a_port_of_it() {
        let mut ports = ports(16);
        let id = ports.allocate(0, 1).unwrap();
        for _ in 0..8 {
            assert_eq!(ports.take_port(id, 1, 4001).unwrap() % 2, 1);
        }
        assert_eq!(ports.take_port(id, 1, 4001).unwrap() % 2, 0);
    }

    #[test]
    fn a_block_rests() {
        let mut ports = ports(PORTS);
        let id = ports.allocate(0, 0).unwrap();
        assert_eq!(ports.allocate(0, 0), None);
        ports.release(0, id);
        assert_eq!(ports.allocate(119_000_000_000, 0), None);
        assert_eq!(ports.allocate(120_000_000_000, 0), Some(id));
    }
}
