#!/bin/sh
# Gives Holdfast's image to this node: run it on every node. The first of ctr, nerdctl, docker and skopeo (for CRI-O) that
# is there does it, or the one that is named: ./load.sh docker
set -eu
cd "$(dirname "$0")"
sha256sum --check --quiet SHA256SUMS
image=@IMAGE@
tool=${1:-}
# Docker brings a ctr, but looks elsewhere for images.
if [ -z "$tool" ] && [ -S /run/cri-dockerd.sock ]; then tool=docker; fi
for t in ctr nerdctl docker skopeo; do
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
skopeo) skopeo copy oci-archive:holdfast.tar "containers-storage:$image" ;;
"") echo "load.sh: there is no ctr, no nerdctl, no docker and no skopeo" >&2 && exit 1 ;;
*) echo "load.sh: $tool: want ctr, nerdctl, docker or skopeo" >&2 && exit 1 ;;
esac
echo "loaded $image with $tool"
