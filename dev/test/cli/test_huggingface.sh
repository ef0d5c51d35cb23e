#!/usr/bin/env bash
# A model goes to a folder of Hugging Face's and comes back with the same bytes; each weight is where transformers
# expects it; a folder that is damaged, or of another kind of model, is refused. test_huggingface.py compares logits.
#
#     dev/test/cli/test_huggingface.sh TRAINER CKPT [--case WORD]
set -u
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/harness/report.sh
. dev/test/harness/llmc_files.sh
text=$PWD/dev/data/text/default.txt
trainer=$(realpath "$1")
ckpt=$(realpath "$2")
NP=1
. scripts/env.sh
export OMP_NUM_THREADS=2
cd "$work" || exit 1
log=$work/log

# gives STATUS WORDS ARGUMENTS...: ckpt ends with this status and prints these words
gives() {
    timeout 200 "$ckpt" "${@:3}" > "$log" 2>&1
    local status=$?
    cat "$log"
    [ $status = "$1" ] && grep -qF -- "$2" "$log"
}

# model VERSION: a file of a model of 2 layers, 2 heads, 16 channels, 9 tokens of 128, 6 positions. The bytes of a text
# are finite floats, none like another.
C=16 V=9 T=6 L=2
model() {
    local numel=$((128 * C + T * C + L * (12 * C * C + 13 * C) + 2 * C)) bytes=$((22 - 6 * $1))
    [ "$1" = 5 ] && bytes=2 || bytes=4
    int32 20240326 "$1" $T $V $L 2 $C 128
    head -c 992 /dev/zero
    tail -c +5000 "$text" | head -c $((V * C * bytes))
    head -c $(((128 - V) * C * bytes)) /dev/zero
    tail -c +9000 "$text" | head -c $(((numel - 128 * C) * bytes))
}
model 3 > v3.bin
model 5 > v5.bin
"$ckpt" export v3.bin hf3 > "$log" 2>&1 || cat "$log"

# ---- there and back --------------------------------------------------------------------------------------------------

round_trip() {      # VERSION PRECISION
    gives 0 "nothing is lost" export "v$1.bin" "trip$1" && grep -qF "wrote trip$1: $2" "$log" &&
        gives 0 "wrote back$1.bin: $2; 2 layers, 2 heads, 16 channels, vocabulary 9, 6 positions" \
            import "trip$1" "back$1.bin" && grep -qF "nothing is lost" "$log" && cmp "v$1.bin" "back$1.bin"
}
check "fp32: the same bytes after a round trip" round_trip 3 fp32
check "bf16: the same bytes after a round trip" round_trip 5 bf16
precisions() {
    gives 0 "nothing is lost" export v5.bin hf53 --precision fp32 && gives 0 "nothing is lost" import hf53 v53.bin &&
        gives 0 "0 of 28 tensors differ" compare v5.bin v53.bin &&
        gives 0 "lost: the lower 16 bits of" export v3.bin hf35 --precision bf16 && cp "$log" lost &&
        gives 0 "lost: the lower 16 bits of" import hf3 v35.bin --precision bf16 && cmp <(grep lost "$log") \
            <(grep lost lost) && gives 0 "nothing is lost" import hf35 v35_too.bin && cmp v35.bin v35_too.bin
}
check "rounded and widened as convert does it" precisions

# header FILE: its JSON; data FILE: what follows
header_bytes() { od -An -td4 -N4 "$1" | tr -d ' '; }
header() { tail -c +9 "$1" | head -c "$(header_bytes "$1")"; }
data() { tail -c +$((9 + $(header_bytes "$1"))) "$1"; }
# place NAME: dtype, shape and data_offsets of a tensor in hf3
place() {
    header hf3/model.safetensors | grep -oE "\"$1\":\{[^}]*" |
        sed -E 's/.*"dtype":"([A-Z0-9]*)","shape":\[([0-9,]*)\],"data_offsets":\[([0-9]*),([0-9]*)\]/\1 \2 \3 \4/'
}
float() { tail -c +$((1 + $2)) "$1" | head -c 4 | od -An -tx4; }
# weight_is NAME SHAPE INDEX LOGICAL: element INDEX of a tensor there is element LOGICAL of the model file
weight_is() {
    local dtype shape begin end
    read -r dtype shape begin end <<< "$(place "$1")"
    [ "$dtype $shape" = "F32 $2" ] && [ "$(float <(data hf3/model.safetensors) $((begin + 4 * $3)))" = \
        "$(float v3.bin $((1024 + 4 * $4)))" ] || { echo "$1: $dtype $shape $begin $end"; return 1; }
}
weights() {
    local qkvw=$((128 * C + T * C + 2 * L * C)) attprojw fcw fcprojw
    attprojw=$((qkvw + L * (3 * C * C + 3 * C)))
    fcw=$((attprojw + L * (C * C + C) + 2 * L * C))
    fcprojw=$((fcw + L * (4 * C * C + 4 * C)))
    # (in, out) there, (out, in) here: element (3, 40) of layer 1's c_attn is element (40, 3) of its qkvw
    weight_is transformer.h.1.attn.c_attn.weight 16,48 $((3 * 48 + 40)) $((qkvw + 3 * C * C + 40 * C + 3)) &&
        weight_is transformer.h.0.attn.c_proj.weight 16,16 $((5 * 16 + 2)) $((attprojw + 2 * C + 5)) &&
        weight_is transformer.h.1.mlp.c_fc.weight 16,64 $((15 * 64 + 63)) $((fcw + 4 * C * C + 63 * C + 15)) &&
        weight_is transformer.h.0.mlp.c_proj.weight 64,16 $((62 * 16 + 1)) $((fcprojw + 4 * C + 62)) &&
        weight_is transformer.wte.weight 9,16 $((8 * C + 3)) $((8 * C + 3)) &&
        weight_is transformer.wpe.weight 6,16 $((5 * C + 3)) $((128 * C + 5 * C + 3)) &&
        weight_is transformer.h.1.attn.c_attn.bias 48 47 $((qkvw + L * 3 * C * C + 3 * C + 47)) &&
        weight_is transformer.ln_f.bias 16 15 $((128 * C + T * C + L * (12 * C * C + 13 * C) + 2 * C - 1))
}
check "each weight is where transformers looks for it" weights
config() { grep -qF "\"$1\": $2" hf3/config.json || { echo "$1 is not $2"; return 1; }; }
configs() { config model_type '"gpt2"' && config n_embd 16 && config n_positions 6 && config vocab_size 9 &&
    config n_layer 2 && config n_head 2 && config activation_function '"gelu_new"' && config eos_token_id null; }
check "config.json has the model's sizes" configs

# ---- what others save ------------------------------------------------------------------------------------------------

# safetensors HEADER < DATA: a file
safetensors() { int32 ${#1} 0; printf '%s' "$1"; cat; }
# changed SED: the folder `other`, with another header; changed_config SED: with another config.json
changed() {
    rm -rf other other.bin && cp -r hf3 other
    data hf3/model.safetensors | safetensors "$(header hf3/model.safetensors | sed "$1")" > other/model.safetensors
}
changed_config() { rm -rf other other.bin && cp -r hf3 other && sed -i "$1" other/config.json; }
comes_back() { gives 0 "wrote other.bin" import other other.bin && cmp v3.bin other.bin; }
without_prefix() { changed 's/transformer\.//g' && comes_back; }
check "names without a prefix" without_prefix
# Adds a tensor at the end: NAME DTYPE SHAPE, its data from standard input
appended() {
    local end bytes
    end=$(data hf3/model.safetensors | wc -c)
    cat > extra && bytes=$(wc -c < extra)
    rm -rf other other.bin && cp -r hf3 other
    local entry="\"$1\":{\"dtype\":\"$2\",\"shape\":[$3],\"data_offsets\":[$end,$((end + bytes))]}"
    cat <(data hf3/model.safetensors) extra |
        safetensors "$(header hf3/model.safetensors | sed "s/ *$//; s/}$/,$entry}/")" > other/model.safetensors
}
masks() { head -c 36 /dev/zero | appended transformer.h.1.attn.bias U8 1,1,6,6 && comes_back &&
    head -c 4 /dev/zero | appended h.0.attn.masked_bias F32 '' && comes_back; }
check "masks are ignored" masks
wte() { tail -c +1025 v3.bin | head -c $((V * C * 4)); }
head_is_there() { wte | appended lm_head.weight F32 $V,$C && comes_back; }
check "lm_head.weight, the same as wte" head_is_there
other_head() {
    wte | tr 'e' 'f' | appended lm_head.weight F32 $V,$C && gives 2 "lm_head.weight is not wte.weight" \
        import other other.bin && [ ! -e other.bin ]
}
check "lm_head.weight that is another is refused" other_head
f16() {     # the last tensor as F16; its fp32 numbers are exact
    local name=transformer.h.1.mlp.c_proj.bias begin entry
    begin=$(place $name | cut -d' ' -f3)
    entry="\"$name\":{\"dtype\":\"F16\",\"shape\":[16],\"data_offsets\":[$begin,$((begin + 32))]}"
    rm -rf other other.bin && cp -r hf3 other
    { data hf3/model.safetensors | head -c "$begin"
      int16 0x3c00 0xc000 0x7bff 0x0001 0x8000 0x3555 0x0400 0x03ff 0 0 0 0 0 0 0 0; } |
        safetensors "$(header hf3/model.safetensors | sed "s/\"$name\":{.*/$entry}/")" > other/model.safetensors
    gives 0 "nothing is lost" import other other.bin && [ "$(tail -c $((4 * (C + 2 * C))) other.bin | head -c 32 |
        od -An -v -tx4 | xargs)" = "3f800000 c0000000 477fe000 33800000 80000000 3eaaa000 38800000 387fc000" ]
}
check "F16" f16
# Each tensor in a file of its own: its header is in the list of the index, which is made from the header of hf3.
sharded() {
    local name shape begin end n=0 map=
    rm -rf other other.bin && mkdir -p other && cp hf3/config.json other
    [ -e parts ] || { mkdir parts && data hf3/model.safetensors > all && while IFS='|' read -r name shape begin end; do
        n=$((n + 1))
        { int32 160 0
          printf '%-160s' "{\"$name\":{\"dtype\":\"F32\",\"shape\":[$shape],\"data_offsets\":[0,$((end - begin))]}}"
          tail -c +$((begin + 1)) all | head -c $((end - begin)); } > parts/part-$n.safetensors
        map+=",\"$name\":\"part-$n.safetensors\""
    done < <(header hf3/model.safetensors | grep -oE '"transformer[^}]*' |
        sed -E 's/"([^"]*)".*\[([0-9,]*)\].*\[([0-9]*),([0-9]*)\]/\1|\2|\3|\4/') &&
        echo "{\"metadata\":{\"total_size\":1},\"weight_map\":{${map#,}}}" > parts/model.safetensors.index.json; }
    cp parts/* other
}
in_parts() { sharded && comes_back; }
check "several files, with an index" in_parts
exchanged() {
    sharded
    sed -i 's/part-1\.s/part-x.s/; s/part-2\.s/part-1.s/; s/part-x\.s/part-2.s/' other/model.safetensors.index.json
    gives 2 "are they of the same model?" import other x.bin
}
check "an index that does not fit its files is refused" exchanged
lacking() {
    sharded && rm other/part-7.safetensors && gives 2 "part-7.safetensors: cannot be opened" import other x.bin
}
check "a file of several that is missing" lacking
outside() {
    sharded
    sed -i 's/part-1\.s/..\/part-1.s/' other/model.safetensors.index.json
    gives 2 "names something else than files beside it" import other x.bin
}
check "an index that names files elsewhere is refused" outside

# ---- refused ---------------------------------------------------------------------------------------------------------

refused() { gives 2 "$1" import other other.bin && [ ! -e other.bin ]; }
damaged() { changed "$2" && refused "$1"; }
wrong_config() { changed_config "$2" && refused "$1"; }
first='"data_offsets":\[0,576\]'
check "a shape that its bytes do not have" damaged "which its type and shape do not have" 's/\[9,16\]/[9,17]/'
check "a shape that the model does not have" damaged \
    "wte.weight: does not have the shape [9, 16] that config.json implies" 's/\[9,16\]/[16,9]/'
check "a shape whose product overflows" damaged "impossible shape" \
    's/\[9,16\]/[9007199254740992,9007199254740992]/'
check "a negative size" damaged "impossible shape" 's/\[9,16\]/[-9,-16]/'
check "a size that is no integer" damaged "impossible shape" 's/\[9,16\]/[9.5,16]/'
check "tensors that overlap" damaged "wpe.weight: begins at byte 572 of the data, the one before ends at 576" \
    's/\[576,960\]/[572,956]/'
check "a gap between tensors" damaged "begins at byte 960 of the data, the one before ends at 576" \
    's/"transformer.wpe.weight":{[^}]*},//'
check "offsets outside of the file" damaged "of which there are" "s/$first/\"data_offsets\":[0,99999999]/"
check "offsets that end before they begin" damaged "impossible data_offsets" "s/$first/\"data_offsets\":[576,0]/"
check "offsets that are no numbers" damaged "impossible data_offsets" "s/$first/\"data_offsets\":[\"0\",576]/"
check "no offsets" damaged "has no dtype, shape and data_offsets" "s/,$first//"
check "an unknown type" damaged "has the unknown type Q4" 's/"F32"/"Q4"/'
check "a type that is not read" damaged "has the type I32; F32, BF16 and F16 are read" 's/"F32"/"I32"/'
check "a tensor twice" damaged "is there twice" 's/wpe.weight/wte.weight/'
check "a tensor twice, with and without prefix" damaged "is there twice" 's/transformer.wpe.weight/wte.weight/'
check "a tensor of another name" damaged "is not one of a GPT-2 of 2 layers" 's/h\.1\.ln_2\.bias/h.1.ln_3.bias/'
check "more layers than config.json says" damaged "is not one of a GPT-2 of 2 layers" 's/h\.1\.ln_2\.b/h.2.ln_2.b/'
check "a header that is not JSON" damaged "its header is not a JSON object" 's/:/;/'
check "a header with something behind it" damaged "its header is not a JSON object" 's/$/x/'
fewer() {
    changed_config 's/"n_layer": 2/"n_layer": 3/' && refused "tensor h.2.ln_1.weight: is missing"
}
check "a tensor that is missing" fewer
header_length() {       # WORDS LOW HIGH
    changed '' && { int32 "$2" "$3"; tail -c +9 hf3/model.safetensors; } > other/model.safetensors && refused "$1"
}
check "a header longer than the file" header_length "its header would have 99999999 bytes" 99999999 0
check "a header of 2^40 bytes" header_length "its header would have 1099511627776 bytes" 0 256
check "a header of no bytes" header_length "its header would have 0 bytes" 0 0
truncated() { changed '' && truncate -s "$1" other/model.safetensors && refused "$2"; }
check "an empty file" truncated 0 "is shorter than a header"
check "a file cut in its header" truncated 100 "its header would have"
check "a file cut in its data" truncated -4 "of which there are"
longer() { changed '' && echo more >> other/model.safetensors && refused "5 bytes that are in no tensor"; }
check "bytes that are in no tensor" longer
infinite() {
    changed '' && printf '\0\0\200\177' | dd of=other/model.safetensors bs=1 conv=notrunc status=none \
        seek=$(($(stat -c %s other/model.safetensors) - 4)) && refused "h.1.mlp.c_proj.bias: element 15 is inf"
}
check "a weight that is not finite" infinite

check "another kind of model" wrong_config '"model_type" is "llama"' 's/"gpt2"/"llama"/'
check "another activation" wrong_config '"activation_function" is "relu"' 's/"gelu_new"/"relu"/'
check "another epsilon" wrong_config '"layer_norm_epsilon" is 1e-06' 's/1e-05/1e-06/'
check "a head of its own" wrong_config '"tie_word_embeddings" is false' 's/\(embeddings": \)true/\1false/'
check "another width inside" wrong_config '"n_inner" is 32' 's/"n_inner": null/"n_inner": 32/'
inner() { changed_config 's/"n_inner": null/"n_inner": 64/' && comes_back; }
check "that width, said as a number" inner
check "attention scaled by layer" wrong_config '"scale_attn_by_inverse_layer_idx" is true' \
    's/{/{"scale_attn_by_inverse_layer_idx": true,/'
check "no number of heads" wrong_config '"n_head" is missing' 's/"n_head"/"heads"/'
check "heads that do not divide the channels" wrong_config "cannot be divided among 3 heads" 's/\(head": \)2/\13/'
check "a size that is no number" wrong_config '"n_embd" is "16"' 's/"n_embd": 16/"n_embd": "16"/'
check "a config.json that is not JSON" wrong_config "config.json: is not a JSON object" 's/}//'
no_config() { changed_config '' && rm other/config.json && refused "other/config.json: cannot be opened"; }
check "no config.json" no_config
no_weights() {
    changed_config '' && mv other/{model.safetensors,pytorch_model.bin} && refused "pytorch_model.bin is not read"
}
check "only PyTorch's own file" no_weights

# ---- files -----------------------------------------------------------------------------------------------------------

check "import replaces nothing" gives 2 "v5.bin: exists" import hf3 v5.bin
check "import wants .bin" gives 2 "give a name that ends in .bin" import hf3 model
check "export replaces nothing" gives 2 "hf3: has a config.json" export v3.bin hf3
check "export without a model" gives 2 "none: No such file" export none hf4
too_large() {       # COMMAND FROM TO
    (ulimit -f 4 && gives 2 "make room" "$@") && [ ! -e "${*: -1}" ] && [ -z "$(find . -name '*.tmp')" ]
}
check "a folder that cannot be written leaves nothing" too_large export v3.bin full
check "a model file that cannot be written leaves nothing" too_large import hf3 full.bin
one_layer() {       # TOKENS PADDED: a model file of one layer
    int32 20240326 3 $T "$1" 1 2 $C "$2"
    head -c 992 /dev/zero
    head -c $((4 * $1 * C)) "$text"
    head -c $((4 * ($2 - $1) * C)) /dev/zero
    head -c $((4 * (T * C + 12 * C * C + 13 * C + 2 * C))) "$text"
}
bytes_tokenizer() {
    one_layer 256 256 > bytes.bin && gives 0 "nothing is lost" export bytes.bin hf_bytes --tokenizer bytes &&
        [ "$(wc -l < hf_bytes/merges.txt)" = 1 ] && grep -qF '"!": 33, "\"": 34, "#": 35' hf_bytes/vocab.json &&
        grep -qF '"Ċ": 10' hf_bytes/vocab.json && grep -qF '"ł": 160, "¡": 161' hf_bytes/vocab.json &&
        grep -qF '"Ń": 173, "®": 174' hf_bytes/vocab.json && grep -qF '"eos_token_id": 10' hf_bytes/config.json &&
        grep -qF '"eos_token": "Ċ"' hf_bytes/tokenizer_config.json
}
check "a tokenizer of bytes" bytes_tokenizer
tokenizer() {       # the bytes, "ab", " a", a third token, end of text
    int32 20240328 2 260 259
    head -c 1008 /dev/zero
    for byte in {0..255}; do printf -v hex '\\x01\\x%02x' "$byte" && printf '%b' "$hex"; done
    printf '\2ab\2 a\3%s\15<|endoftext|>' "$1"
}
merges() {      # " ab" is merged from " " and "ab", which has the lower number, not from " a" and "b"
    tokenizer ' ab' > tokenizer.bin && one_layer 260 384 > merges.bin &&
        gives 0 "nothing is lost" export merges.bin hf_merges --tokenizer tokenizer.bin &&
        printf '#version: 0.2\na b\nĠ a\nĠ ab\n' | cmp - hf_merges/merges.txt &&
        grep -qF '"ab": 256, "Ġa": 257, "Ġab": 258, "<|endoftext|>": 259}' hf_merges/vocab.json &&
        grep -qF '"eos_token_id": 259' hf_merges/config.json
}
check "a tokenizer with merges" merges
no_encoding() {
    tokenizer xyz > xyz.bin && gives 2 "xyz.bin: token 258 is not merged from two" export merges.bin hf_xyz \
        --tokenizer xyz.bin && [ ! -e hf_xyz/config.json ]
}
check "a tokenizer that is no byte-pair encoding is refused" no_encoding
check "another vocabulary's tokenizer is refused" gives 2 "has 256 tokens, but the model's vocabulary is 9" \
    export v3.bin hf_other --tokenizer bytes
told() {        # the trainer says how
    timeout -k 5 200 "$trainer" -e "$1" -i "$text" -x 1 > "$log" 2>&1 && return 1
    cat "$log"
    grep -qF "build/ckpt/ckpt import \"$1\" \"hf3.bin\"" "$log"
}
check "-e FOLDER/: the trainer says how it is imported" told hf3/
check "-e FOLDER" told hf3
report "no temporary file is left" "$(find . -name '*.tmp')"
summary
