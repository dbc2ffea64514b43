//! The pictures of a run: what every one of them keeps to, for usual and for hostile data.

mod chart;
mod heat_map;
mod lineage;
mod run;
mod svg_check;

use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::strategy::Just;
use synth_optimizer_platform::artifacts::pictures::{PictureForm, PictureLayout, PictureWidth};

/// Every way in which a picture is laid out.
const LAYOUTS: [PictureLayout; 4] = [
    PictureLayout { form: PictureForm::File, width: PictureWidth::Wide },
    PictureLayout { form: PictureForm::File, width: PictureWidth::Narrow },
    PictureLayout { form: PictureForm::Inline, width: PictureWidth::Wide },
    PictureLayout { form: PictureForm::Inline, width: PictureWidth::Narrow },
];

/// Returns texts that a user, a model or a container may write.
fn hostile_text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        Just("<script>alert(1)</script>".to_owned()),
        Just("\"' onload='x' ]]> --> </style></title></svg>".to_owned()),
        Just("\u{0}\u{1}\u{1b}[31m\u{7f}\u{85}\u{fffe}".to_owned()),
        Just("\u{202e}\u{2067}שלום مرحبا".to_owned()),
        Just("&amp;&#0;&nope;".to_owned()),
        Just("漢字🙂".repeat(200)),
    ]
}
