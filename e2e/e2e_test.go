//go:build e2e

package e2e

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

var (
	on     = flag.String("on", "lab", "the `provider` of the cluster: lab or kind")
	keep   = flag.Bool("keep", false, "use a lab that is up already, and leave it up")
	matrix = flag.Bool("matrix", false, "show every failure of layer 2, and hold it to what is promised")
)

// env is the cluster of a test, with Holdfast installed, the samples applied and an
// application that serves.
type env struct {
	*testbed.Bed
	app testbed.App
	// isRepetition reports whether the cases ran before, with another mode of kube-proxy.
	isRepetition bool
}

type testCase struct {
	name string
	run  func(*testing.T, *env)
}

// breaking are the cases in which nodes, networks or speakers fail, or another machine claims an address: in these
// speakers may see conflicts.
var breaking = []string{
	"Conflict", "L2Loss", "L2Fabric", "L2Private", "L2FewNodes", "L2Partition", "L2Matrix", "DeadEndpoint", "DeadLeader",
	"LivingEndpoint", "Unfiltered",
	"NodeLoss", "Boot", "Chart", "BGPFaults", "DataPath", "Proxy",
	"Chaos",
}

// needs are what cases, or parts of them, ask of the cluster that not every one can do. Where it cannot they are
// skipped, and listed.
var needs = map[string][]wire.Ability{
	"Boot":              {wire.StopsProxy},
	"DataPath":          {wire.StopsProxy},
	"L2Loss":            {wire.DropsFrames},
	"L2Loss/inbound 90": {wire.NodesOnLAN},
	"L2Fabric":          {wire.DropsFrames},
	"L2Private":         {wire.DropsFrames},
	"L2FewNodes":        {wire.DropsFrames},
	"L2Partition":       {wire.DropsFrames},
	"L2Matrix":          {wire.DropsFrames},
	"LivingEndpoint":    {wire.DropsFrames},
	"BGPFaults":         {wire.DropsFrames},
	"Chaos":             {wire.DropsFrames, wire.NodesOnLAN},
}

// needs skips a case, or a part of one, that the cluster cannot serve.
func (e *env) needs(t *testing.T, name string) {
	t.Helper()
	if l := wire.FirstLack(e.Cluster.Lacks(), needs[name]); l != nil {
		t.Skip(l)
	}
}

// cases run in this order, one at a time: they share a cluster, and some inject faults.
var cases = []testCase{
	{"Reach", testReach},
	{"NoEndpoint", testNoEndpoint},
	{"HeadStart", testHeadStart},
	{"LocalArrives", testLocalArrives},
	{"FilterRanges", testFilterRanges},
	{"FilterInside", testFilterInside},
	{"FilterLocal", testFilterLocal},
	{"FilterOrder", testFilterOrder},
	{"Egress", testEgress},
	{"Endpoints", testEndpoints},
	{"ClusterAddresses", testClusterAddresses},
	{"PoolRenamed", testPoolRenamed},
	{"RulesFlushed", testRulesFlushed},
	{"Boot", testBoot},
}

// once are the cases that do not depend on the mode of kube-proxy. They run in the first
// mode only.
var once = []testCase{
	{"Samples", testSamples},
	{"Refused", testRefused},
	{"OtherClass", testOtherClass},
	{"OthersStatus", testOthersStatus},
	{"Rejected", testRejected},
	{"Policies", testPolicies},
	{"Delete", testDelete},
	{"SCTP", testSCTP},
	{"ExcludedNode", testExcludedNode},
	{"Conditions", testConditions},
	{"PeerDown", testPeerDown},
	{"Why", testWhy},
	{"FilterClosed", testFilterClosed},
	{"FilterShared", testFilterShared},
	{"FilterPorts", testFilterPorts},
	{"FilterPMTU", testFilterPMTU},
	{"FilterLimit", testFilterLimit},
	{"FilterSpeed", testFilterSpeed},
	{"SpeakerRestart", testSpeakerRestart},
	{"SpeakerReady", testSpeakerReady},
	{"FloatingIP", testFloatingIP},
	{"FloatingIPRestore", testFloatingIPRestore},
	{"Sharing", testSharing},
	{"Finalizers", testFinalizers},
	{"NoController", testNoController},
	{"Foreign", testForeign},
	{"PoolEdits", testPoolEdits},
	{"PoolMemory", testPoolMemory},
	{"OpenStack", testOpenStack},
	{"Proxy", testProxy},
	{"LeaderKilled", testLeaderKilled},
	{"APIServerKilled", testAPIServerKilled},
	{"Conflict", testConflict},
	{"Covered", testCovered},
	{"L2Loss", testL2Loss},
	{"L2Fabric", testL2Fabric},
	{"L2Private", testL2Private},
	{"L2FewNodes", testL2FewNodes},
	{"L2Partition", testL2Partition},
	{"L2Keys", testL2Keys},
	{"L2Matrix", testL2Matrix},
	{"ECMP", testECMP},
	{"BGPDrain", testBGPDrain},
	{"BGPFaults", testBGPFaults},
	{"DeadEndpoint", testDeadEndpoint},
	{"DeadLeader", testDeadLeader},
	{"LivingEndpoint", testLivingEndpoint},
	{"Unfiltered", testUnfiltered},
	{"NodeLoss", testNodeLoss},
	{"Chaos", testChaos},
	{"DataPath", testDataPath},
	{"Chart", testChart},
}

func TestE2E(t *testing.T) {
	p, known := providers[*on]
	if !known {
		t.Fatalf("unknown provider %q", *on)
	}
	modes, err := p.modes()
	must(t, err)
	for i, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			e := setUp(t, p, mode)
			e.isRepetition = i > 0
			run := cases
			if i == 0 {
				run = slices.Concat(once, cases)
			}
			t.Cleanup(func() { t.Log("not run on this cluster:\n" + notRun(e.Cluster.Lacks())) })
			for _, c := range run {
				t.Run(c.name, func(t *testing.T) {
					e.needs(t, c.name)
					if !slices.Contains(breaking, c.name) {
						e.alone(t)
					}
					c.run(t, e)
				})
			}
		})
	}
}

// setUp opens a cluster and installs Holdfast there, for one mode of kube-proxy.
func setUp(t *testing.T, p provider, mode string) *env {
	b, err := testbed.New(p.open(t, mode))
	must(t, err)
	return install(t, b, p.built)
}

// install installs Holdfast with the samples in a cluster, after it has built what hosts outside run.
func install(t *testing.T, b *testbed.Bed, build bool) *env {
	start := time.Now()
	if build {
		must(t, b.Build(t.Context()))
	}
	must(t, b.LoadImage(t.Context()))
	t.Logf("image on all nodes: %s", since(start))
	start = time.Now()
	must(t, b.Install(t.Context()))
	must(t, b.WaitReady(t.Context()))
	t.Logf("chart installed and ready: %s", since(start))
	for _, file := range []string{"pool.yaml", "l2advertisement.yaml", "bgpadvertisement.yaml", "bgppeer.yaml"} {
		must(t, b.ApplyFile(t.Context(), "", "config", "samples", file))
	}
	e := &env{Bed: b}
	// One worker has no pod, so that externalTrafficPolicy: Local makes a difference.
	e.app = testbed.App{Namespace: e.namespace(t), Name: "echo", Replicas: 2, Nodes: e.workers()[:2]}
	must(t, b.Deploy(t.Context(), e.app))
	return e
}

// workers are all nodes but the first, which is the control plane.
func (e *env) workers() []string { return e.Cluster.Nodes()[1:] }

// must ends the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func since(start time.Time) time.Duration { return time.Since(start).Round(time.Millisecond) }

// slug turns the test's name into a valid object name.
func slug(t *testing.T) string {
	name := strings.ToLower(t.Name()[strings.LastIndexByte(t.Name(), '/')+1:])
	return strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, name), "-")
}
