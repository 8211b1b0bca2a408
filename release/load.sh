#!/bin/sh
# Gives Holdfast's images to this node: run it on every node. The first of ctr, nerdctl, docker and skopeo (for CRI-O) that
# is there does it, or the one that is named: ./load.sh docker
set -eu
cd "$(dirname "$0")"
sha256sum --check --quiet SHA256SUMS
tool=${1:-}
# Docker brings a ctr, but looks elsewhere for images.
if [ -z "$tool" ] && [ -S /run/cri-dockerd.sock ]; then tool=docker; fi
for t in ctr nerdctl docker skopeo; do
	if [ -z "$tool" ] && command -v "$t" >/dev/null; then tool=$t; fi
done
arch=$(uname -m)
case $arch in
x86_64) arch=amd64 ;;
aarch64) arch=arm64 ;;
armv7* | armv8*) arch=arm ;;
esac
# load ARCHIVE IMAGE
load() {
	case $tool in
	ctr) ctr --namespace k8s.io images import "$1" ;;
	nerdctl) nerdctl --namespace k8s.io load --input "$1" ;;
	docker)
		docker load --input "$1"
		# Docker's own image store knows no images for several architectures: each has a tag of its own there.
		if ! docker image inspect "$2" >/dev/null 2>&1; then
			docker tag "$2-$arch" "$2"
		fi
		;;
	skopeo) skopeo copy "oci-archive:$1" "containers-storage:$2" ;;
	"") echo "load.sh: there is no ctr, no nerdctl, no docker and no skopeo" >&2 && exit 1 ;;
	*) echo "load.sh: $tool: want ctr, nerdctl, docker or skopeo" >&2 && exit 1 ;;
	esac
	echo "loaded $2 with $tool"
}
load holdfast.tar "@IMAGE@"
case " @PROXY_ARCHITECTURES@ " in
*" $arch "*) load holdfast-proxy.tar "@PROXY@" ;;
*) echo "the image of the proxies has nothing for $arch" ;;
esac
