package egress

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// benchPort is the partner's port of the benchmarks, and the first of benchPorts. Each port has all ports of a slice to
// itself: conntrack remembers a closed connection for 10 s.
const (
	benchPort  = 1000
	benchPorts = 64
)

// rig is a world with a pod and a partner that benchmarks load.
type rig struct {
	*world
	pod *pod
}

// newRig makes a rig. The world's nodes masquerade; they translate only if translate is called.
func newRig(b *testing.B) *rig {
	w := newWorld(b)
	// The LAN is a switch, which has no rules for packets.
	for _, table := range []string{"iptables", "ip6tables"} {
		w.lan.Sysctl("bridge/bridge-nf-call-"+table, "0")
	}
	return &rig{world: w, pod: w.addPod(w.nodes[0], 2)}
}

// translate makes the nodes translate, with answers by way of an owner.
func (r *rig) translate(owner *node) {
	for _, n := range r.nodes {
		n.translator.config.Log = slog.New(slog.DiscardHandler)
	}
	r.owner(owner)
	r.set()
}

// detour makes answers to the masqueraded connections of the first node take the way through the second one, which is
// a plain router: it does not know of connections.
func (r *rig) detour() {
	n, router := r.nodes[0], r.nodes[1]
	router.Output("nft", "flush ruleset")
	router.Sysctl("ipv4/conf/all/send_redirects", "0")
	router.Sysctl("ipv4/conf/eth0/send_redirects", "0")
	r.router.Output(
		"ip", "neigh", "replace", n.address().v4, "lladdr", router.MAC("eth0").String(), "dev", "eth0", "nud", "permanent",
	)
}

// BenchmarkControl compares two worlds that masquerade: how far a ratio may be off.
func BenchmarkControl(b *testing.B) {
	before := nstest.LoadBefore(b)
	nstest.Alone(b)
	one, other := newRig(b), nstest.Elsewhere(b, func() *rig { return newRig(b) })
	nstest.Compare(b, "control", before, download(one), download(other))
}

// compare compares load in a world that translates, with answers by way of the owner, and in another one.
func compare(b *testing.B, name string, owner int, prepare func(*rig), load func(*rig) func() float64) {
	before := nstest.LoadBefore(b)
	nstest.Alone(b)
	translated, other := newRig(b), nstest.Elsewhere(b, func() *rig { return newRig(b) })
	translated.translate(translated.nodes[owner])
	prepare(other)
	nstest.Compare(b, name, before, load(translated), load(other))
}

// masquerade leaves a rig as it is.
func masquerade(*rig) {}

// The owner of the address: the node of the pod, to which answers then come directly, or another one.
const (
	ownNode   = 0
	otherNode = 1
)

// BenchmarkThroughput: a TCP stream from a pod to the partner.
func BenchmarkThroughput(b *testing.B) { compare(b, "throughput", ownNode, masquerade, upload) }

// BenchmarkThroughputPassed: another node passes the acknowledgements on.
func BenchmarkThroughputPassed(b *testing.B) {
	compare(b, "throughput_passed", otherNode, masquerade, upload)
}

// BenchmarkThroughputRouted: as passed, against acknowledgements that the other node routes.
func BenchmarkThroughputRouted(b *testing.B) {
	compare(b, "throughput_routed", otherNode, (*rig).detour, upload)
}

// BenchmarkAnswer: a TCP stream from the partner to a pod, which another node passes on, against a direct one. The
// other node has a processor that the direct way does not use.
func BenchmarkAnswer(b *testing.B) {
	compare(b, "answer", otherNode, masquerade, apart(download))
}

// BenchmarkAnswerRouted: the same against a stream that the other node routes.
func BenchmarkAnswerRouted(b *testing.B) {
	compare(b, "answer_routed", otherNode, (*rig).detour, apart(download))
}

// BenchmarkAnswerSmall is BenchmarkAnswer in packets of the size of a frame.
func BenchmarkAnswerSmall(b *testing.B) {
	compare(b, "answer_small", otherNode, masquerade, apart(downloadFrames))
}

// BenchmarkAnswerShared is BenchmarkAnswer with all nodes on the same processor.
func BenchmarkAnswerShared(b *testing.B) {
	compare(b, "answer_shared", otherNode, masquerade, download)
}

// BenchmarkAnswerSharedRouted: the same against a stream that the other node routes.
func BenchmarkAnswerSharedRouted(b *testing.B) {
	compare(b, "answer_shared_routed", otherNode, (*rig).detour, download)
}

// BenchmarkAnswerSharedSmall is BenchmarkAnswerShared in packets of the size of a frame.
func BenchmarkAnswerSharedSmall(b *testing.B) {
	compare(b, "answer_shared_small", otherNode, masquerade, downloadFrames)
}

// apart returns a load with a processor for each of two nodes: the first for the node of the pod, as without apart, and
// the second for the other one.
func apart(load func(*rig) func() float64) func(*rig) func() float64 {
	return func(r *rig) func() float64 {
		for i, processors := range []string{"1", "2"} { // masks
			const steering = "/sys/class/net/eth0/queues/rx-0/rps_cpus"
			r.nodes[i].Output("unshare", "--mount", "sh", "-c", "mount -t sysfs sysfs /sys && echo "+processors+" > "+steering)
		}
		return load(r)
	}
}

// BenchmarkConnectionRate: short connections per second: opened, a word and its answer, closed.
func BenchmarkConnectionRate(b *testing.B) { compare(b, "connrate", ownNode, masquerade, connect) }

// BenchmarkConnectionRatePassed: another node passes the answers on.
func BenchmarkConnectionRatePassed(b *testing.B) {
	compare(b, "connrate_passed", otherNode, masquerade, connect)
}

// BenchmarkConnectionRateRouted: as passed, against answers that the other node routes.
func BenchmarkConnectionRateRouted(b *testing.B) {
	compare(b, "connrate_routed", otherNode, (*rig).detour, connect)
}

// Bytes of a transfer, which take about as long as a run.
const (
	largeTransfer = 32 << 20
	smallTransfer = 1 << 20
)

// upload returns a load: the bytes per second from the pod to the partner.
func upload(r *rig) func() float64 {
	open := r.streams()
	return func() float64 {
		pod, partner := open()
		return transfer(r.t, largeTransfer, pod, partner)
	}
}

// download returns a load: the bytes per second from the partner to the pod.
func download(r *rig) func() float64 {
	open := r.streams()
	return func() float64 {
		pod, partner := open()
		return transfer(r.t, largeTransfer, partner, pod)
	}
}

// downloadFrames is download without packets larger than a frame, which the kernel otherwise forwards as one.
func downloadFrames(r *rig) func() float64 {
	r.partner.Output("ip", "link", "set", "eth0", "gso_max_segs", "1")
	open := r.streams()
	return func() float64 {
		pod, partner := open()
		return transfer(r.t, smallTransfer, partner, pod)
	}
}

// streams returns what opens a connection of the pod to the partner and returns both ends. The kernel adapts windows
// to each connection for its whole life, so each run has one of its own.
func (r *rig) streams() func() (pod, partner net.Conn) {
	// CUBIC ends slow start by delays (RFC 9406), sometimes at half of the throughput.
	for _, host := range []*nstest.NS{r.pod.NS, r.partner} {
		host.Sysctl("ipv4/tcp_congestion_control", "reno")
	}
	accepted := make(chan net.Conn)
	ended := make(chan struct{})
	r.t.Cleanup(func() { close(ended) })
	r.partner.Serve(fmt.Sprint(":", benchPort), func(c net.Conn) {
		accepted <- c
		<-ended
	})
	return func() (pod, partner net.Conn) {
		pod, err := r.pod.try("tcp", partner4, benchPort, patient)
		must(r.t, err)
		return pod, <-accepted
	}
}

// transfer sends bytes and returns how many arrive in a second. It ends when all have arrived. Each end has a processor
// to itself: if the kernel places them, some transfers have both ends on one, and take twice as long.
func transfer(t testing.TB, size int, from, to net.Conn) float64 {
	var ends errgroup.Group
	begin := time.Now()
	ends.Go(func() error {
		pin(0)
		buffer := make([]byte, 256<<10)
		for range size / len(buffer) {
			if _, err := from.Write(buffer); err != nil {
				return err
			}
		}
		return nil
	})
	ends.Go(func() error {
		pin(1)
		buffer := make([]byte, 1<<20)
		for left := size; left > 0; {
			n, err := to.Read(buffer)
			if err != nil {
				return err
			}
			left -= n
		}
		return nil
	})
	must(t, ends.Wait())
	rate := float64(size) / time.Since(begin).Seconds()
	must(t, from.Close())
	must(t, to.Close())
	return rate
}

// pin binds the goroutine to a processor, for its whole life.
func pin(processor int) {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(processor % runtime.NumCPU())
	_ = unix.SchedSetaffinity(0, &set)
}

// connect returns a load: the connections per second from the pod to the partner.
func connect(r *rig) func() float64 {
	for i := range benchPorts {
		r.partner.Serve(fmt.Sprint(":", benchPort+i), func(c net.Conn) { _, _ = io.Copy(c, c) })
	}
	next := 0
	return func() (rate float64) {
		r.pod.Do(func() {
			rate = nstest.Rate(func() {
				next++
				c, err := net.Dial("tcp", net.JoinHostPort(partner4, fmt.Sprint(benchPort+next%benchPorts)))
				must(r.t, err)
				must(r.t, talk(c))
				// No TIME-WAIT: ports of the pod would run out.
				_ = c.(*net.TCPConn).SetLinger(0)
				c.Close()
			})
		})
		return rate
	}
}

// talk sends a word and waits until it comes back.
func talk(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(patient))
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 16))
	return err
}

// BenchmarkWays: small packets of a pod on nodes with two networks, which leave by the clients' one, against the same
// where the default route leads there.
func BenchmarkWays(b *testing.B) {
	before := nstest.LoadBefore(b)
	nstest.Alone(b)
	steered, other := newRig(b), nstest.Elsewhere(b, func() *rig { return newRig(b) })
	steered.addCore()
	for _, r := range []*rig{steered, other} {
		r.translate(r.nodes[ownNode])
	}
	nstest.Compare(b, "ways", before, datagrams(steered), datagrams(other))
}

// datagrams returns a load: the small packets per second from the pod to the partner.
func datagrams(r *rig) func() float64 {
	c := r.pod.dial(r.t, "udp", partner4, benchPort)
	return func() float64 { return nstest.Rate(func() { _, _ = c.Write([]byte("x")) }) }
}

// crowdServices is the number of egress Services in a crowd. Each has an address of each family and crowdSlices slices.
const (
	crowdServices = 1000
	crowdSlices   = 3
)

// crowd returns the desired state of a node with a crowd, all of whose pods are on other nodes.
func (w *world) crowd(n *node) Desired {
	d := w.desired(n)
	d.Sources, d.Passes = nil, nil
	for _, base := range []pair{{"198.18.0.0", "2001:db8:a::"}} {
		for _, from := range base.all() {
			a := addr(from)
			for range crowdServices {
				for slice := range crowdSlices {
					other := w.nodes[1+slice%2]
					d.Passes = append(d.Passes, lb.EgressPass{
						Address: a, First: uint16(8+slice) * lb.SlicePorts, Via: addr(other.address().of(from)), Link: "eth0",
					})
				}
				a = a.Next()
			}
		}
	}
	return d
}

// BenchmarkMap: a node that has none of the crowd's pods learns of the crowd, and then of one more slice.
func BenchmarkMap(b *testing.B) {
	nstest.Alone(b)
	w := newWorld(b)
	n := w.nodes[0]
	d := w.crowd(n)
	more := d
	last := d.Passes[len(d.Passes)-1]
	last.First += lb.SlicePorts
	more.Passes = append(slices.Clone(d.Passes), last)

	var all, one time.Duration
	var memory []int
	for b.Loop() {
		must(b, n.translator.Remove())
		time.Sleep(silent) // the kernel frees memory later
		before := nstest.KernelMemory(b)
		all += timeOf(func() { n.translator.Set(d) })
		memory = append(memory, nstest.KernelMemory(b)-before)
		one += timeOf(func() { n.translator.Set(more) })
	}

	slices.Sort(memory)
	rounds := time.Duration(b.N)
	b.ReportMetric(float64((all/rounds).Microseconds())/1000, "map_1000_ms")
	b.ReportMetric(float64((one/rounds).Microseconds())/1000, "map_one_ms")
	b.ReportMetric(float64(memory[len(memory)/2])/1024, "kernel_MiB")
}

func timeOf(do func()) time.Duration {
	begin := time.Now()
	do()
	return time.Since(begin)
}

// BenchmarkOtherPackets: small packets of a pod that no Service selects, on a node that knows the crowd.
func BenchmarkOtherPackets(b *testing.B) {
	compareCrowd(b, "other_packets", datagrams)
}

// BenchmarkOtherAnswers: small packets to such a pod.
func BenchmarkOtherAnswers(b *testing.B) {
	compareCrowd(b, "other_answers", func(r *rig) func() float64 {
		var p net.PacketConn
		var err error
		r.partner.Do(func() { p, err = net.ListenPacket("udp", fmt.Sprint(":", benchPort)) })
		must(b, err)
		b.Cleanup(func() { p.Close() })
		_, err = r.pod.dial(b, "udp", partner4, benchPort).Write([]byte("x"))
		must(b, err)
		_, pod, err := p.ReadFrom(make([]byte, 16))
		must(b, err)
		return func() float64 { return nstest.Rate(func() { _, _ = p.WriteTo([]byte("x"), pod) }) }
	})
}

// compareCrowd compares load on a node that knows a crowd with load on a node without tables. No process reads what
// is sent: packets beyond the buffer are dropped.
func compareCrowd(b *testing.B, name string, load func(*rig) func() float64) {
	before := nstest.LoadBefore(b)
	nstest.Alone(b)
	knowing, other := newRig(b), nstest.Elsewhere(b, func() *rig { return newRig(b) })
	n := knowing.nodes[0]
	n.translator.Set(knowing.crowd(n))
	nstest.Compare(b, name, before, load(knowing), load(other))
}
