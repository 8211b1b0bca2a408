#!/bin/sh
# Writes into haproxy.lock the packages of the proxies' image as Debian has them today, for the architectures that it has.
# Apt checks the signatures of the release. Nothing that this machine has of apt counts.
set -eu
cd "$(dirname "$0")"
release=$(sed -n 's/.*debianRelease = "\(.*\)"/\1/p' debian.go)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
: >"$dir/status"
for from in "debian $release" "debian $release-updates" "debian-security $release-security"; do
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/${from% *} ${from#* } main"
done >"$dir/sources.list"
head -1 haproxy.lock >"$dir/lock"
for arch in $(awk '!/^#/ { print $1 }' haproxy.lock | sort -u); do
	apt() {
		apt-get -qq -o Dir::State="$dir" -o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" -o Dir::Etc::sourcelist="$dir/sources.list" \
			-o Dir::Etc::sourceparts=/dev/null -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o APT::Sandbox::User=root "$@"
	}
	apt update
	apt download --print-uris $(awk -v arch="$arch" '$1 == arch { print $2 }' haproxy.lock) >"$dir/uris"
	# 'URL' NAME_VERSION_ARCHITECTURE.deb SIZE SHA256:SUM
	awk -v arch="$arch" -v quote="'" 'split($2, name, "_") != 3 || !sub(/^SHA256:/, "", $4) { print "apt prints " $0 >"/dev/stderr"; exit 1 }
		{ gsub(quote, "", $1); gsub(/%3a/, ":", name[2]); print arch, name[1], name[2], $1, $4 }' "$dir/uris" >"$dir/lines"
	LC_ALL=C sort "$dir/lines" >>"$dir/lock"
done
mv "$dir/lock" haproxy.lock
