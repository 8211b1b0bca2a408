#!/bin/sh
# Signs a release of the commit that is checked out: sign.sh DIRECTORY KEY, with an Ed25519 key in PEM (openssl genpkey -algorithm ed25519).
#
#	SHA256SUMS.sig        the signature of the checksums, in base64: as cosign verify-blob and openssl pkeyutl -verify read it
#	provenance.dsse.json  what the files and the images were made from: a statement of in-toto v1 with SLSA's provenance v1, in an
#	                      envelope of DSSE v1, as cosign verify-blob-attestation reads it
#
# It needs no network and no service: whoever has the public key can check both.
set -eu
dir=$1 key=$2
commit=$(git rev-parse HEAD)
version=$(basename "$dir"/holdfast-*.tgz .tgz)
version=${version#holdfast-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
sign() { openssl pkeyutl -sign -inkey "$key" -rawin -in "$1" | base64 -w0; }
repository=https://github.com/holdfast-lb/holdfast
# The digest by which an image is pulled, wherever it is pushed to: of the only manifest in its archive's index.
digest() {
	image=$(tar -xOf "$dir/$1.tar" index.json | grep -o '"digest": *"sha256:[0-9a-f]*"' | grep -o '[0-9a-f]\{64\}')
	[ "$(printf '%s\n' "$image" | wc -l)" -eq 1 ] && [ "${#image}" -eq 64 ] || { echo "sign.sh: $dir/$1.tar has not one image" >&2; exit 1; }
	printf '{"name":"docker.io/holdfastlb/%s","digest":{"sha256":"%s"}}' "$1" "$image"
}
images=$(digest holdfast),$(digest holdfast-proxy)
{
	printf '{"_type":"https://in-toto.io/Statement/v1","subject":['
	while read -r sum name; do
		printf '{"name":"%s","digest":{"sha256":"%s"}},' "$name" "$sum"
	done < "$dir/SHA256SUMS"
	printf '%s],' "$images"
	printf '"predicateType":"https://slsa.dev/provenance/v1","predicate":{"buildDefinition":{"buildType":"%s/blob/main/CONTRIBUTING.md#release",' "$repository"
	printf '"externalParameters":{"version":"%s"},"resolvedDependencies":[{"uri":"git+%s","digest":{"gitCommit":"%s"}}]},' "$version" "$repository" "$commit"
	printf '"runDetails":{"builder":{"id":"%s/blob/main/Makefile"}}}}' "$repository"
} > "$work/statement"
type=application/vnd.in-toto+json
# The pre-authentication encoding, PAE.
{ printf 'DSSEv1 %d %s %d ' "${#type}" "$type" "$(wc -c < "$work/statement")"; cat "$work/statement"; } > "$work/pae"
signature=$(sign "$work/pae")
printf '{"payloadType":"%s","payload":"%s","signatures":[{"sig":"%s"}]}\n' "$type" "$(base64 -w0 < "$work/statement")" "$signature" > "$dir/provenance.dsse.json"
sign "$dir/SHA256SUMS" > "$dir/SHA256SUMS.sig"
