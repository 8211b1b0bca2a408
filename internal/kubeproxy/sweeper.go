package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// sweepTimes are the delays of sweeps after the loss of endpoints. There are several, because kube-proxy sends clients
// to an endpoint until it has read the new EndpointSlices: for a second, in a large cluster for several.
var sweepTimes = []time.Duration{0, time.Second, 2 * time.Second, 5 * time.Second, 15 * time.Second}

// Sweeper deletes the conntrack entries of connection attempts to lost endpoints. An entry binds a connection to the
// endpoint that kube-proxy chose for the first packet, even if that endpoint never answers. Every repeated SYN of the
// client, and every new connection from the same port, goes to the dead endpoint for two minutes
// (nf_conntrack_tcp_timeout_syn_sent). After the deletion kube-proxy chooses an endpoint for the next SYN.
//
// It also deletes, once, the entries of ended connections to an address when the address moves here from a living node.
// They may be from before the address left this node, and last for two minutes (nf_conntrack_tcp_timeout_time_wait). A
// connection to the former owner may have the ports of an ended one. Then every segment would be invalid to conntrack,
// and would not be relayed.
//
// In all other cases a Sweeper does nothing. A sweep reads the whole conntrack table, which the rollout of an
// application must not cause.
type Sweeper struct {
	log *slog.Logger
	// forgetAttempts and forgetEnded are the functions of these names. Tests replace them.
	forgetAttempts, forgetEnded func(map[netip.Addr]bool) (int, error)

	// Forgotten counts the deleted attempts.
	Forgotten prometheus.Counter
	// wake starts the sweeps of Run.
	wake lb.Signal

	mu sync.Mutex
	// lost are the endpoints on dead nodes.
	lost map[netip.Addr]bool
	// moved are the addresses that have moved here since the last sweep.
	moved  map[netip.Addr]bool
	relays lb.Map[netip.Addr, lb.Relay]
}

// NewSweeper returns a Sweeper that sweeps while Run runs.
func NewSweeper(log *slog.Logger) *Sweeper {
	return &Sweeper{
		log:            log,
		forgetAttempts: forgetAttempts,
		forgetEnded:    forgetEnded,
		wake:           lb.NewSignal(),
		moved:          map[netip.Addr]bool{},
		Forgotten: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_stranded_attempts_forgotten_total",
			Help: "Connection attempts to endpoints on dead nodes that were deleted from conntrack.",
		}),
	}
}

// Set replaces the set of endpoints on dead nodes.
func (s *Sweeper) Set(lost map[netip.Addr]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range lost {
		if !s.lost[a] {
			s.wake.Kick()
		}
	}

	s.lost = lost
}

// Relay makes Run delete the entries of ended connections to the addresses whose relays start at a time. It does not
// wait. It is called before a plan changes anything: the deletion is usually over when clients learn of the new owner.
func (s *Sweeper) Relay(relays lb.Map[netip.Addr, lb.Relay], start time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relays.Changes(relays, func(a netip.Addr, _, r lb.Relay, _, isWanted bool) {
		if isWanted && r.Start.Equal(start) {
			s.moved[a] = true
			s.wake.Kick()
		}
	})

	s.relays = relays
}

// Run sweeps until ctx ends.
func (s *Sweeper) Run(ctx context.Context) error {
	start := time.Now()
	next := len(sweepTimes) // index of the next sweep
	for {
		var due <-chan time.Time
		if next < len(sweepTimes) {
			due = time.After(time.Until(start.Add(sweepTimes[next])))
		}

		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			start = time.Now()
			next = 0
		case <-due:
			next++
			s.sweep()
		}
	}
}

// sweep deletes the entries of attempts to all lost endpoints, and of ended connections to addresses that moved here.
func (s *Sweeper) sweep() {
	s.mu.Lock()
	lost, moved := s.lost, s.moved
	s.moved = map[netip.Addr]bool{}
	s.mu.Unlock()

	s.sweepEnded(moved)
	s.sweepAttempts(lost)
}

// sweepEnded deletes the entries of ended connections. After an error the next sweep tries again.
func (s *Sweeper) sweepEnded(moved map[netip.Addr]bool) {
	ended, err := s.forgetEnded(moved)
	if ended > 0 {
		s.log.Info("forgot ended connections to addresses that moved here",
			"connections", ended, "addresses", len(moved))
	}
	if err == nil {
		return
	}

	s.log.Warn("cannot forget ended connections to addresses that moved here", "addresses", len(moved), "error", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.moved, moved)
}

// sweepAttempts deletes the entries of attempts to lost endpoints.
func (s *Sweeper) sweepAttempts(lost map[netip.Addr]bool) {
	attempts, err := s.forgetAttempts(lost)
	s.Forgotten.Add(float64(attempts))
	if attempts > 0 {
		s.log.Info("forgot connection attempts to endpoints on dead nodes",
			"attempts", attempts, "endpoints", len(lost))
	}
	if err != nil {
		s.log.Warn("cannot forget connection attempts to endpoints on dead nodes", "endpoints", len(lost), "error", err)
	}
}

// Constants of linux/netfilter/nfnetlink_conntrack.h, nf_conntrack_common.h and nf_conntrack_tcp.h.
const (
	ctaStatusMask = 26
	ipsSeenReply  = 1 << 1
	ipsDstNAT     = 1 << 5
	// unacknowledged is the flag of a direction whose data is not acknowledged completely
	// (IP_CT_TCP_FLAG_DATA_UNACKNOWLEDGED).
	unacknowledged = 0x10
)

// forgetAttempts deletes the entries of TCP connections that destination NAT sent to one of the endpoints and that wait
// for its first answer. It returns their number. Connections with an answer stay. It needs CAP_NET_ADMIN. The kernel
// walks the whole table, and lists only entries without an answer.
func forgetAttempts(endpoints map[netip.Addr]bool) (int, error) {
	return forget(ipsSeenReply, isStuckAttempt, endpoints)
}

// forgetEnded deletes the entries of TCP connections to one of the addresses that have ended and need no entry any
// more. It returns their number. The kernel lists all connections with destination NAT.
func forgetEnded(addresses map[netip.Addr]bool) (int, error) {
	return forget(0, isEnded, addresses)
}

// forget deletes the entries of connections with destination NAT for which concerns returns true. They must not have
// the status bits of without. One listing has both families. Each entry is deleted when it is listed, because there may
// be tens of thousands.
func forget(
	without uint32,
	concerns func([]byte, map[netip.Addr]bool) bool,
	addresses map[netip.Addr]bool,
) (forgotten int, err error) {
	if len(addresses) == 0 {
		return 0, nil
	}

	// One socket serves all deletions: to open it takes longer than to delete an entry.
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fmt.Errorf("open a netlink socket: %w", err)
	}

	defer socket.Close()
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}}
	list := request(unix.AF_UNSPEC, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	// Older kernels ignore the filter, and list everything.
	list.AddData(nl.NewRtAttr(nl.CTA_STATUS, nl.BEUint32Attr(ipsDstNAT)))
	list.AddData(nl.NewRtAttr(ctaStatusMask, nl.BEUint32Attr(ipsDstNAT|without)))
	var failed error
	err = list.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		if len(message) < nl.SizeofNfgenmsg || !concerns(message[nl.SizeofNfgenmsg:], addresses) {
			return true
		}

		r := request(message[0], nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
		r.AddRawData(message[nl.SizeofNfgenmsg:])
		r.Sockets = sockets
		_, err := r.Execute(unix.NETLINK_NETFILTER, 0)
		switch {
		case err == nil:
			forgotten++
		case !errors.Is(err, fs.ErrNotExist):
			failed = fmt.Errorf("delete conntrack entry: %w", err)
		}

		return true
	})
	if err != nil {
		err = fmt.Errorf("list conntrack entries: %w", err)
	}

	return forgotten, errors.Join(err, failed)
}

// isStuckAttempt reports whether an entry is an unanswered attempt to reach one of the endpoints.
func isStuckAttempt(attributes []byte, endpoints map[netip.Addr]bool) bool {
	state := nft.Attribute(attributes, nl.CTA_PROTOINFO, nl.CTA_PROTOINFO_TCP, nl.CTA_PROTOINFO_TCP_STATE)
	if len(state) != 1 || state[0] != nl.TCP_CONNTRACK_SYN_SENT {
		return false
	}

	// The endpoint is the source of the reply direction.
	endpoint, ok := address(attributes, nl.CTA_TUPLE_REPLY, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC)
	original, known := address(attributes, nl.CTA_TUPLE_ORIG, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST)
	return ok && known && endpoints[endpoint] && endpoint != original
}

// isEnded reports whether an entry is an ended connection to one of the addresses: after a reset, or closed and
// acknowledged by both sides. In these states conntrack itself gives the ports to a new SYN (nf_conntrack_proto_tcp.c).
// In TIME_WAIT the last data may still be sent again: the state means only that some segment followed both FINs.
func isEnded(attributes []byte, addresses map[netip.Addr]bool) bool {
	tcp := nft.Attribute(attributes, nl.CTA_PROTOINFO, nl.CTA_PROTOINFO_TCP)
	state := nft.Attribute(tcp, nl.CTA_PROTOINFO_TCP_STATE)
	if len(state) != 1 || state[0] != nl.TCP_CONNTRACK_TIME_WAIT && state[0] != nl.TCP_CONNTRACK_CLOSE {
		return false
	}

	for _, direction := range []uint16{nl.CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, nl.CTA_PROTOINFO_TCP_FLAGS_REPLY} {
		flags := nft.Attribute(tcp, direction)
		if state[0] == nl.TCP_CONNTRACK_TIME_WAIT && (len(flags) == 0 || flags[0]&unacknowledged != 0) {
			return false
		}
	}

	original, known := address(attributes, nl.CTA_TUPLE_ORIG, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST)
	return known && addresses[original]
}

// address returns an address of one direction. The arguments v4 and v6 are its attribute types in each family.
func address(attributes []byte, tuple, v4, v6 uint16) (netip.Addr, bool) {
	for _, a := range []uint16{v4, v6} {
		if addr, ok := netip.AddrFromSlice(nft.Attribute(attributes, tuple, nl.CTA_TUPLE_IP, a)); ok {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// request returns a request about the conntrack table.
func request(family uint8, operation, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(int(netlink.ConntrackTable)<<8|operation, flags)
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return r
}
