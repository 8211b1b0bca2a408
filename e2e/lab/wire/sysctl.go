package wire

// Sysctl is one file below /proc/sys.
type Sysctl struct{ Path, Value string }

// Sysctls returns what is set in a host's namespace before its links are
// made, so that links inherit it.
func Sysctls(h Host) []Sysctl {
	forward := "1"
	if h.Role == Client {
		forward = "0"
	}
	s := []Sysctl{
		{"net/ipv4/ip_forward", forward},
		{"net/ipv6/conf/all/forwarding", forward},
		{"net/ipv6/conf/default/forwarding", forward},
		// Answers leave by other links than requests came in by.
		{"net/ipv4/conf/all/rp_filter", "0"},
		{"net/ipv4/conf/default/rp_filter", "0"},
		// Duplicate address detection would hold IPv6 back for seconds.
		{"net/ipv6/conf/all/accept_dad", "0"},
		{"net/ipv6/conf/default/accept_dad", "0"},
		{"net/ipv6/conf/default/accept_ra", "0"},
	}
	if h.Role != Client {
		s = append(s,
			// Flows, not pairs of addresses, spread over next hops ...
			Sysctl{"net/ipv4/fib_multipath_hash_policy", "1"},
			Sysctl{"net/ipv6/fib_multipath_hash_policy", "1"},
			// ... and next hops that do not resolve are left out.
			Sysctl{"net/ipv4/fib_multipath_use_neigh", "1"})
	}
	return s
}
