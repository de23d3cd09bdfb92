import pytest

from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.views import check_view_size


def test_views_have_whole_patches_and_not_too_many():
    tokenizer = ImageTokenizerConfig((224, 224), (14, 14))
    for size in (14, 224, 700):
        check_view_size("size", size, tokenizer)
    for size in (-14, 0, 15):
        with pytest.raises(
            ValueError, match=f"multiple of the encoder's patches, 14 x 14 pixels, got {size}"
        ):
            check_view_size("size", size, tokenizer)
    with pytest.raises(ValueError, match=r"size must be at most 700 .* got 714, .* the 2,601 patches"):
        check_view_size("size", 714, tokenizer)


def test_what_an_encoder_was_made_for_is_never_too_large():
    check_view_size("size", 224, ImageTokenizerConfig((224, 224), (4, 4)))
    with pytest.raises(ValueError, match="at most 224 "):
        check_view_size("size", 228, ImageTokenizerConfig((224, 224), (4, 4)))


def test_patches_that_are_not_square():
    tokenizer = ImageTokenizerConfig((224, 224), (16, 8))
    check_view_size("size", 560, tokenizer)
    with pytest.raises(ValueError, match="at most 560 for patches of 16 x 8"):
        check_view_size("size", 576, tokenizer)
