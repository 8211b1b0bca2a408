#!/bin/sh
# Gives Holdfast's image to this node: run it on every node. The first of ctr, nerdctl and docker that is there does it,
# or the one that is named: ./load.sh docker
set -eu
cd "$(dirname "$0")"
sha256sum --check --quiet SHA256SUMS
image=@IMAGE@
tool=${1:-}
for t in ctr nerdctl docker; do
	if [ -z "$tool" ] && command -v "$t" >/dev/null; then tool=$t; fi
done
case $tool in
ctr) ctr --namespace k8s.io images import holdfast.tar ;;
nerdctl) nerdctl --namespace k8s.io load --input holdfast.tar ;;
docker)
	docker load --input holdfast.tar
	# Docker's own image store knows no images for several architectures: each has a tag of its own there.
	if ! docker image inspect "$image" >/dev/null 2>&1; then
		case $(uname -m) in
		x86_64) docker tag "$image-amd64" "$image" ;;
		aarch64) docker tag "$image-arm64" "$image" ;;
		*) docker tag "$image-$(uname -m)" "$image" ;;
		esac
	fi
	;;
"") echo "load.sh: there is no ctr, no nerdctl and no docker" >&2 && exit 1 ;;
*) echo "load.sh: $tool: want ctr, nerdctl or docker" >&2 && exit 1 ;;
esac
echo "loaded $image with $tool"
