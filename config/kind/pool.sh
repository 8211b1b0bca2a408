#!/bin/sh
# Print a pool of free addresses of kind's Docker network, and its announcement by ARP and NDP:
#   sh config/kind/pool.sh | kubectl apply -f -
# Docker gives its containers addresses from the low end of the network. The pool is at the high end.
set -eu
network=${1:-${KIND_EXPERIMENTAL_DOCKER_NETWORK:-kind}}
docker network inspect "$network" --format '{{range .IPAM.Config}}{{println .Subnet}}{{end}}' | awk '
	/:.*::\// { sub("::/.*", ""); pool[++n] = $0 "::ffff:0/112"; next }
	/\./ {
		split($0, part, /[.\/]/)
		size = 2 ^ (32 - part[5])
		last = ((part[1] * 256 + part[2]) * 256 + part[3]) * 256 + part[4]
		last += size - 1 - last % size - 1 # the very last address is for broadcasts
		count = size < 256 ? int(size / 4) : 64
		pool[++n] = address(last - count + 1) "-" address(last)
	}
	function address(a) {
		return int(a / 16777216) % 256 "." int(a / 65536) % 256 "." int(a / 256) % 256 "." a % 256
	}
	END {
		if (n == 0) { print "network '"$network"' has no subnet" >"/dev/stderr"; exit 1 }
		print "apiVersion: holdfast.dev/v1beta1\nkind: IPAddressPool\nmetadata:\n  name: kind\nspec:\n  addresses:"
		for (i = 1; i <= n; i++) print "    - " pool[i]
		print "---\napiVersion: holdfast.dev/v1beta1\nkind: L2Advertisement\nmetadata:\n  name: kind\nspec:\n  ipAddressPools:\n    - kind"
	}'
