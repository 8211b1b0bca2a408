//go:build !race

package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// The benchmarks need a network of their own, and count what the whole process takes:
//
//	HOLDFAST_COST_PROFILES=/tmp/cost go test -exec 'unshare -n' -run '^$' -bench 'Service/10000' -benchtime 400x \
//		./internal/node
//
// The profiles are /tmp/cost.cpu, and /tmp/cost.heap with /tmp/cost.heap.base of its beginning, of what is measured and
// not of what precedes it. The API server is another process.

const (
	// costSocket is the environment variable with the socket at which TestCostServer serves.
	costSocket = "HOLDFAST_COST_SOCKET"
	// costProfiles is the environment variable with the name of profiles.
	costProfiles = "HOLDFAST_COST_PROFILES"
	costNodes    = 1000
	// costRate is how many Services come each second.
	costRate   = 40
	slicesPath = "/apis/discovery.k8s.io/v1/endpointslices"
)

// BenchmarkService is one Service more, of which others come too: it is created, gets an address and an endpoint, is
// announced by this speaker or the other one, and says so. cpu-ms is the processor time of the process until all of
// this is done, sys-ms the kernel's part.
func BenchmarkService(b *testing.B) {
	all := b // what is made for it stays for each number of changes
	for _, size := range costSizes {
		var w *costly
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			if w == nil {
				w = newCostly(all, size)
			}
			w.measure(b, func() {
				before := w.loop.Completed()
				defer func() { b.ReportMetric(float64(w.loop.Completed()-before)/float64(b.N), "runs/op") }()
				tick := time.NewTicker(time.Second / costRate)
				defer tick.Stop()
				for range b.N {
					<-tick.C
					w.tell(b, "create", w.services)
					w.services++
				}
				w.settle(b)
			})
		})
		w.end(b)
	}
}

// BenchmarkEndpoint is one EndpointSlice that changes, each quarter of a second: a pod is replaced by another one on
// another node.
func BenchmarkEndpoint(b *testing.B) {
	all := b // what is made for it stays for each number of changes
	for _, size := range costSizes {
		var w *costly
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			if w == nil {
				w = newCostly(all, size)
			}
			w.measure(b, func() {
				tick := time.NewTicker(250 * time.Millisecond)
				defer tick.Stop()
				for i := range b.N {
					w.tell(b, "replace", i*7919%size)
					<-tick.C
				}
			})
		})
		w.end(b)
	}
}

// costly is a whole speaker, but for membership and heartbeats, of a cluster of costNodes nodes and two speakers.
type costly struct {
	*Loop
	here     *nstest.NS
	services int
	told     map[netip.Addr]bool
	say      io.WriteCloser
	answers  *bufio.Scanner
	server   *exec.Cmd
	stop     func()
	group    errgroup.Group
}

func newCostly(b *testing.B, size int) *costly {
	b.Helper()
	if links, err := net.Interfaces(); err != nil || len(links) > 1 {
		b.Skipf("not in a network of its own: %v", err)
	}
	k8s.LogTo(slog.New(slog.DiscardHandler))
	here := nstest.Self(b)
	here.SetUp("lo")
	nstest.Veth(b, here, "eth0", nstest.New(b), "eth0")
	here.AddAddress("eth0", "10.154.255.254/16")
	w := &costly{
		here: here, told: map[netip.Addr]bool{}, server: exec.Command("/proc/self/exe", "-test.run=^TestCostServer$"),
	}
	socket := filepath.Join(b.TempDir(), "api")
	w.server.Env = append(os.Environ(), costSocket+"="+socket)
	var err error
	w.say, err = w.server.StdinPipe()
	must(b, err)
	out, err := w.server.StdoutPipe()
	must(b, err)
	w.answers = bufio.NewScanner(out)
	must(b, w.server.Start())
	for w.services < size {
		w.tell(b, "create", w.services)
		w.services++
	}
	w.start(b, &rest.Config{Host: "http://api", Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}})
	w.settle(b)
	return w
}

// start runs the speaker as serve does.
func (w *costly) start(b *testing.B, api *rest.Config) {
	var links *link.Monitor
	w.Loop = newTestLoop(func() []lb.Interface { return links.Links() })
	links = link.New(w.log, func() { w.sinks.Layer2.Kick(); w.loop.Kick() })
	w.sources.Links, w.options, w.sinks.Filter = links, config.Options{Default: true}, newTestGuard(false)
	w.loop = daemon.NewLoop(daemon.LoopConfig{
		Name: "plan", Log: w.log, Sync: w.run, Burst: func() bool { return w.sources.Cluster.InBurst() },
		BurstFactor: planFactor,
	})
	prober := w.atCluster(b, api)
	w.stops.hang = newHang(w.loop, w.offer, w.countOffered)
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	for _, run := range []func(context.Context) error{
		w.sources.Links.Run, w.sinks.Layer2.Run, w.sinks.Relays.Run, w.sinks.Filter.Table.Run, w.sources.Cluster.Run,
		w.sources.Endpoints.Run, w.sources.Liveness.Run, prober.Run, w.Run, w.sinks.Report.Run, w.sinks.Conntrack.Run,
	} {
		w.group.Go(func() error { return run(ctx) })
	}
}

// run is one run of the plan among two speakers that live.
func (w *costly) run(context.Context) (again time.Duration, err error) {
	if !w.sources.Cluster.Synced() || !w.sources.Links.Synced() {
		return 0, nil
	}
	in := w.read(w.sources.Links.Links())
	w.observe(in)
	view := detect.NodeSets{
		View: detect.View{Settled: true}, Alive: map[string]bool{"w1": true, "w2": true}, HeldDown: map[string]bool{},
		SpeakerDown: map[string]bool{},
	}
	self := w.self(in)
	if len(self.Links) == 0 {
		return 0, nil // what one would hand over now would wait for the other one for good
	}
	other := lb.Member{Links: []lb.Link{{Name: "eth0", MAC: lb.MAC{2, 0, 0, 0, 0, 2}, Default: true}}}
	for i := range self.Links {
		other.Links[0].Prefixes = self.Links[i].Prefixes
	}
	metadata := map[string]lb.Member{"w1": self, "w2": other}
	w.sources.Liveness.Set(liveness.Known{
		View: view, Members: metadata, Speakers: in.state.Speakers, Services: in.state.Services,
	})
	return w.Loop.run(in, view, metadata)
}

// tell makes the API server do something, and returns its answer.
func (w *costly) tell(b *testing.B, do string, i int) string {
	b.Helper()
	_, err := fmt.Fprintln(w.say, do, i)
	must(b, err)
	if !w.answers.Scan() {
		b.Fatalf("the API server ended: %v", w.answers.Err())
	}
	return w.answers.Text()
}

// settle waits until all Services say that they are announced: this speaker says it of its own, the API server of the
// others.
func (w *costly) settle(b *testing.B) {
	b.Helper()
	nstest.Until(b, 10*time.Minute, "all are announced", func() bool {
		last := w.last.Load()
		for i := len(w.told); i < w.services; i++ {
			at := costAddress(i)
			if last.plan().Owners.Of(at) == "" {
				return false
			}
			if w.told[at] = true; last.plan().Owners.Of(at) != w.node {
				w.tell(b, "announced", i)
			}
		}
		return w.tell(b, "lacking", 0) == "0"
	})
}

func (w *costly) measure(b *testing.B, do func()) {
	profiled := profile(b)
	b.ReportAllocs()
	b.ResetTimer()
	before := usage(b)
	do()
	after := usage(b)
	b.StopTimer()
	profiled()
	system := time.Duration(after.Stime.Nano() - before.Stime.Nano())
	all := system + time.Duration(after.Utime.Nano()-before.Utime.Nano())
	b.ReportMetric(float64(all)/float64(b.N)/1e6, "cpu-ms/op")
	b.ReportMetric(float64(system)/float64(b.N)/1e6, "sys-ms/op")
}

// profile begins to write profiles, if they are wanted.
func profile(b *testing.B) (end func()) {
	name := os.Getenv(costProfiles)
	if name == "" || b.N == 1 { // the first try
		return func() {}
	}
	heap := func(suffix string) {
		f, err := os.Create(name + suffix)
		must(b, err)
		defer f.Close()
		must(b, pprof.Lookup("allocs").WriteTo(f, 0))
	}
	heap(".heap.base")
	cpu, err := os.Create(name + ".cpu")
	must(b, err)
	must(b, pprof.StartCPUProfile(cpu))
	return func() {
		pprof.StopCPUProfile()
		_ = cpu.Close()
		heap(".heap")
	}
}

func usage(b *testing.B) (u unix.Rusage) {
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u
}

func (w *costly) end(b *testing.B) {
	if w == nil {
		return
	}
	w.stop()
	must(b, w.group.Wait())
	_ = w.say.Close()
	_ = w.server.Wait()
	w.here.Delete("eth0")
}

// TestCostServer is the API server of the benchmarks. It does what it reads, and answers.
func TestCostServer(t *testing.T) {
	socket := os.Getenv(costSocket)
	if socket == "" {
		t.Skip("a process of the benchmarks")
	}
	listener, err := net.Listen("unix", socket)
	must(t, err)
	s := &costServer{apiServer: newAPIServer(t)}
	go func() { _ = http.Serve(listener, s) }()
	s.crowd()
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		var do string
		var i int
		_, err := fmt.Sscan(commands.Text(), &do, &i)
		must(t, err)
		answer := "done"
		switch do {
		case "create":
			s.create(i)
		case "replace":
			s.generation++
			s.put(slicesPath, "bench/"+costName(i), s.slice(i, s.generation))
		case "announced":
			s.change(i, func(o *corev1.Service) { // this speaker may have said that it has no endpoint yet
				for _, c := range costConditions(costAddress(i), "w2") {
					meta.SetStatusCondition(&o.Status.Conditions, c)
				}
			})
		default:
			answer = fmt.Sprint(s.lacking())
		}
		fmt.Println(answer)
	}
}

// costServer speaks protobuf, like the API server, where the speaker asks for it.
type costServer struct {
	*apiServer
	generation int
	// writing is held from the reading of an object to its writing.
	writing sync.Mutex
	// written are the Services before this index whose conditions report them announced.
	written int
}

var costSizes = []int{1_000, 10_000}

func costName(i int) string { return fmt.Sprintf("scale-%05d", i) }

func costAddress(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 154, byte(i >> 8), byte(i)}) }

// crowd makes everything but Services.
func (s *costServer) crowd() {
	const group = "/apis/holdfast.dev/v1beta1/"
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Generation: 1} }
	s.put(group+"ipaddresspools", "p",
		&v1beta1.IPAddressPool{ObjectMeta: named("p"), Spec: v1beta1.IPAddressPoolSpec{Addresses: []string{"10.154.0.0/16"}}})
	s.put(group+"l2advertisements", "p", &v1beta1.L2Advertisement{ObjectMeta: named("p")})
	s.put("/api/v1/namespaces", "bench", &corev1.Namespace{ObjectMeta: named("bench")})
	for i := range costNodes {
		name := costNode(i)
		o := &corev1.Node{ObjectMeta: named(name)}
		o.Labels = map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: fmt.Sprint("zone-", i%3)}
		o.Status.Addresses = []corev1.NodeAddress{{
			Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.160.%d.%d", i/250, 1+i%250),
		}}
		s.put("/api/v1/nodes", name, o)
		s.put(statesPath, name, &v1beta1.SpeakerState{ObjectMeta: named(name)})
		if i < 2 {
			s.put("/api/v1/pods", "holdfast/"+name, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: name}, Spec: corev1.PodSpec{NodeName: name},
				Status: corev1.PodStatus{HostIP: fmt.Sprintf("10.160.0.%d", i+1)},
			})
		}
	}
}

func costNode(i int) string { return fmt.Sprintf("w%d", i%costNodes+1) }

// create does to a Service what comes before its announcement: it is created, then its EndpointSlice, and the
// controller gives it an address.
func (s *costServer) create(i int) {
	m := metav1.ObjectMeta{Namespace: "bench", Name: costName(i), CreationTimestamp: metav1.Now()}
	m.UID = types.UID(fmt.Sprintf("0f0e0d0c-aaaa-4bbb-8ccc-%012d", i))
	m.Labels = map[string]string{"bench": "scale", "service.kubernetes.io/service-proxy-name": "none"}
	clusterIP := fmt.Sprintf("10.97.%d.%d", i/250, 1+i%250)
	s.put(servicesPath, "bench/"+m.Name, &corev1.Service{ObjectMeta: m, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ClusterIP: clusterIP, ClusterIPs: []string{clusterIP},
		IPFamilies:                    []corev1.IPFamily{corev1.IPv4Protocol},
		AllocateLoadBalancerNodePorts: new(false), ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
		Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
	}})
	s.put(slicesPath, "bench/"+m.Name, s.slice(i, 0))
	s.change(i, func(o *corev1.Service) {
		address := costAddress(i).String()
		o.Annotations = map[string]string{v1beta1.AnnotationAssigned: address + "=p"}
		o.Finalizers = []string{v1beta1.FinalizerAddress}
		o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address, IPMode: new(corev1.LoadBalancerIPModeVIP)}}
		o.Status.Conditions = []metav1.Condition{
			costCondition(v1beta1.ConditionAddressAssigned, "Assigned", fmt.Sprintf("has %s from pool %q", address, "p")),
			costCondition(v1beta1.ConditionAddressRecord, "Recorded", string(o.UID)+" "+address+"=p"),
		}
	})
}

func (s *costServer) slice(i, generation int) *discoveryv1.EndpointSlice {
	endpoint := func(at, node int) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{
			Addresses:  []string{netip.AddrFrom4([4]byte{10, byte(192 + at>>16), byte(at >> 8), byte(at)}).String()},
			NodeName:   new(costNode(node)),
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "bench", Name: fmt.Sprintf("%s-%x", costName(i), at)},
		}
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "bench", Name: costName(i), Labels: map[string]string{discoveryv1.LabelServiceName: costName(i)},
		},
		Ports: []discoveryv1.EndpointPort{{
			Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP),
		}},
		Endpoints:   []discoveryv1.Endpoint{endpoint(2*i, i), endpoint(2*i+1+generation<<15, i+1+generation)},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
}

func (s *costServer) change(i int, do func(*corev1.Service)) {
	s.writing.Lock()
	defer s.writing.Unlock()
	var o corev1.Service
	s.get(servicesPath, "bench/"+costName(i), &o)
	do(&o)
	s.put(servicesPath, "bench/"+costName(i), &o)
}

// lacking returns how many Services do not say that they are announced.
func (s *costServer) lacking() int {
	for ; ; s.written++ {
		var o corev1.Service
		if !s.get(servicesPath, "bench/"+costName(s.written), &o) {
			return 0
		}
		if !meta.IsStatusConditionTrue(o.Status.Conditions, v1beta1.ConditionAnnouncedL2) {
			return 1
		}
	}
}

func costCondition(kind, reason, message string) metav1.Condition {
	return metav1.Condition{
		Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.Now(),
	}
}

func costConditions(address netip.Addr, node string) []metav1.Condition {
	return []metav1.Condition{
		costCondition(v1beta1.ConditionAnnouncedL2, "Announced",
			address.String()+" is announced by node "+node+" on link eth0"),
		costCondition(v1beta1.ConditionAnnouncers, "Announced", address.String()+"="+node),
	}
}

const protobufType = "application/vnd.kubernetes.protobuf"

// ServeHTTP implements http.Handler.
func (s *costServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.Header.Get("Accept"), protobufType) {
		w = &protobufWriter{ResponseWriter: w, watch: r.FormValue("watch") != ""}
	}
	if r.Method == http.MethodPatch {
		s.writing.Lock()
		defer s.writing.Unlock()
	}
	s.apiServer.ServeHTTP(w, r)
}

// protobufWriter makes protobuf of what is written, each time a whole object or event.
type protobufWriter struct {
	http.ResponseWriter
	watch, begun bool
}

// WriteHeader implements http.ResponseWriter.
func (w *protobufWriter) WriteHeader(code int) {
	w.Header().Set("Content-Type", protobufType)
	if w.watch {
		w.Header().Set("Content-Type", protobufType+";stream=watch")
	}
	w.ResponseWriter.WriteHeader(code)
	w.begun = true
}

func (w *protobufWriter) Flush() { w.ResponseWriter.(http.Flusher).Flush() }

func (w *protobufWriter) Write(body []byte) (int, error) {
	out := body
	if w.watch {
		var event struct {
			Type   string
			Object json.RawMessage
		}
		if err := json.Unmarshal(body, &event); err != nil {
			return 0, err
		}
		e := &metav1.WatchEvent{Type: event.Type, Object: runtime.RawExtension{Raw: asProtobuf(event.Object)}}
		raw, err := e.Marshal()
		if err != nil {
			return 0, err
		}
		out = append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...)
	} else {
		out = asProtobuf(body)
	}
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	if _, err := w.ResponseWriter.Write(out); err != nil {
		return 0, err
	}
	return len(body), nil
}

func asProtobuf(body []byte) []byte {
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	var out bytes.Buffer
	if err == nil {
		err = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(o, &out)
	}
	if err != nil {
		panic(err)
	}
	return out.Bytes()
}
