use super::{Sha256, sha256};
use synth_optimizer_core::model::canonical;

#[test]
fn digests_equal_those_of_the_pure_crates() {
    for length in [0, 1, 55, 56, 63, 64, 65, 1_000, 100_000] {
        let bytes: Vec<u8> = (0..length).map(|place: u32| (place % 251) as u8).collect();
        let digest = sha256(&bytes);
        assert_eq!(canonical::hex(&digest), canonical::sha256_hex(&bytes));
        let mut parts = Sha256::new();
        bytes.chunks(7).for_each(|part| parts.update(part));
        assert_eq!(parts.finish(), digest);
    }
}
