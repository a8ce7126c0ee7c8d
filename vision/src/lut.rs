//! Takes a geometry, gives the value of every byte: what the model's processor feeds the model.

use crate::geometry::Geometry;

/// Value of each byte per channel in f32: `(x - 255*mean) / (255*std)`, subtraction first, as transformers'
/// fused rescale and normalise computes it.
pub fn normalisation_lut(geometry: &Geometry) -> [[f32; 256]; 3] {
    let mut table = [[0.0; 256]; 3];
    for (channel, values) in table.iter_mut().enumerate() {
        let mean = geometry.mean[channel] * 255.0;
        let std = geometry.std[channel] * 255.0;
        for (byte, value) in values.iter_mut().enumerate() {
            *value = (byte as f32 - mean) / std;
        }
    }
    table
}

/// [`normalisation_lut`] as bfloat16 bits, rounded to nearest, ties to even: equal to the model's own cast.
pub fn normalisation_lut_bf16(geometry: &Geometry) -> [[u16; 256]; 3] {
    normalisation_lut(geometry).map(|channel| channel.map(bf16_bits))
}

/// The upper half of an f32 after rounding to nearest even. Not a number stays not a number.
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    let half = 0x7FFF + ((bits >> 16) & 1);
    (bits.wrapping_add(half) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::bf16_bits;

    #[test]
    fn bf16_rounds_to_nearest_and_ties_to_even() {
        let cases = [
            (1.0, 0x3F80),
            (f32::from_bits(0x3F80_8000), 0x3F80),
            (f32::from_bits(0x3F81_8000), 0x3F82),
            (f32::from_bits(0x3F80_8001), 0x3F81),
            (f32::from_bits(0xBF80_FFFF), 0xBF81),
            (f32::MAX, 0x7F80),
            (f32::NEG_INFINITY, 0xFF80),
        ];
        for (value, bits) in cases {
            assert_eq!(bf16_bits(value), bits, "{value}");
        }
        assert_eq!(bf16_bits(f32::NAN) & 0x7FC0, 0x7FC0);
    }
}
