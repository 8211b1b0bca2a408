//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/lab/router"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// object returns the YAML of one of Holdfast's objects.
func object(kind, name, spec string) string {
	return fmt.Sprintf("apiVersion: holdfast.dev/v1beta1\nkind: %s\nmetadata: {name: %s}\nspec: %s\n", kind, name, spec)
}

// testRejected writes objects that the API server must reject with a message that names the remedy. TestOldest tries
// each rule.
func testRejected(t *testing.T, e *env) {
	for name, tc := range map[string]struct{ kind, spec, want string }{
		"bad prefix": {"IPAddressPool", `{addresses: [192.0.2.0/28, 192.0.2.0/33]}`,
			"each address must be a prefix (192.0.2.0/26), a range"},
		"bad source": {"IPAddressPool", `{addresses: [192.0.2.0/26], sourceRanges: [10.0.0.0/8, ten]}`,
			"each source range must be a prefix"},
		"reversed range": {"IPAddressPool", `{addresses: [192.0.2.110-192.0.2.100]}`,
			"a range begins with its lowest address"},
		"reversed IPv6": {"IPAddressPool", `{addresses: ["2001:db8::9-2001:db8::1"]}`,
			"a range begins with its lowest address"},
		"large community": {"Community", `{communities: [{name: far, value: "65536:1"}]}`, "65535"},
		"everything":      {"IPAddressPool", `{addresses: ["::/0"]}`, "replace /0 by the prefix that is yours to give"},
		"open ports":      {"IPAddressPool", `{addresses: [192.0.2.0/26], undeclaredPorts: Open}`, "spec.undeclaredPorts"},
		"unknown field":   {"IPAddressPool", `{addresses: [192.0.2.0/28], colour: red}`, "colour"},
		"no AS":           {"BGPPeer", `{peerASN: 64512, peerAddress: 172.31.0.9}`, "myASN"},
		"short hold time": {"BGPPeer", `{myASN: 64600, peerASN: 64512, peerAddress: 172.31.0.9, holdTime: 1s}`,
			"holdTime must be between 3s and 65535s"},
		"two families": {"BGPPeer",
			`{myASN: 64600, peerASN: 64512, peerAddress: 172.31.0.9, sourceAddress: "fd00:31::11"}`, "must be of one IP family"},
		"echo mode": {"BFDProfile", `{echoMode: true}`, "echo mode is not supported"},
		"aggregate of one": {"BGPAdvertisement", `{aggregationLength: 24, serviceSelectors: [{matchLabels: {a: b}}]}`,
			"cannot be aggregated"},
		"long link name": {"L2Advertisement", `{interfaces: [averyverylongname]}`, "interfaces"},
	} {
		t.Run(name, func(t *testing.T) {
			text := object(tc.kind, "e2e-rejected", tc.spec)
			err := e.Apply(t.Context(), "", []byte(text))
			if err == nil {
				must(t, e.Delete(t.Context(), "", []byte(text)))
				t.Fatal("the API server took it")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}

// valid waits until the condition Valid of an object has a status and a reason.
func (e *env) valid(
	t *testing.T,
	resource, name string,
	status metav1.ConditionStatus,
	reason string,
) metav1.Condition {
	t.Helper()
	var got metav1.Condition
	must(t, testbed.Until(t.Context(), soon,
		fmt.Sprintf("%s %s Valid=%s %s", resource, name, status, reason), func(ctx context.Context) (err error) {
			if got, err = e.Valid(ctx, resource, name); err != nil {
				return err
			}
			if got.Status != status || got.Reason != reason {
				return fmt.Errorf("it is %s %s: %s", got.Status, got.Reason, got.Message)
			}
			return nil
		}))
	return got
}

// testConditions writes objects with errors that only the controller can detect. It
// reports them in conditions and keeps serving all other objects.
func testConditions(t *testing.T, e *env) {
	node, err := e.Kube.CoreV1().Nodes().Get(t.Context(), e.workers()[0], metav1.GetOptions{})
	must(t, err)
	own := node.Status.Addresses[0].Address
	kinds := map[string]string{
		"IPAddressPool": testbed.Pools, "L2Advertisement": testbed.L2Advertisements,
		"BGPAdvertisement": testbed.BGPAdvertisements, "BGPPeer": testbed.Peers,
	}
	for name, tc := range map[string]struct {
		kind, spec   string
		status       metav1.ConditionStatus
		reason, text string
	}{
		"one-address": {"IPAddressPool", `{addresses: [192.0.2.77, "2001:db8::77"], autoAssign: false}`, metav1.ConditionTrue,
			"Valid", "in force"},
		"host-bits": {"IPAddressPool", `{addresses: [192.0.2.85/28], autoAssign: false}`, metav1.ConditionTrue,
			"HostBitsIgnored", "192.0.2.80"},
		// Admission compares only the last numbers behind "::".
		"reversed": {"IPAddressPool", `{addresses: ["2001:db8::1:5-2001:db8::2"], autoAssign: false}`, metav1.ConditionFalse,
			"InvalidAddresses",
			"write 2001:db8::2-2001:db8::1:5"},
		"two-families": {"IPAddressPool", `{addresses: ["192.0.2.110-2001:db8::1"], autoAssign: false}`,
			metav1.ConditionFalse, "InvalidAddresses",
			"one range for each"},
		"overlapping": {"IPAddressPool", `{addresses: [172.30.0.140-172.30.0.150, 192.0.2.120/31], autoAssign: false}`,
			metav1.ConditionFalse,
			"OverlappingAddresses", `"lan"`},
		"unknown-pool": {"L2Advertisement", `{ipAddressPools: [nowhere]}`, metav1.ConditionFalse, "UnknownReference",
			`"nowhere"`},
		"unknown-peer": {"BGPAdvertisement", `{ipAddressPools: [lan], peers: [absent]}`, metav1.ConditionFalse,
			"UnknownReference", `"absent"`},
		"own-address": {"BGPPeer", `{myASN: 64600, peerASN: 64512, peerAddress: "` + own + `"}`, metav1.ConditionFalse,
			"PeerIsSelf", own},
		"second-of-two": {"BGPPeer", `{myASN: 64600, peerASN: 64512, peerAddress: 172.31.0.1}`, metav1.ConditionFalse,
			"DuplicatePeer", `"r1v4"`},
	} {
		t.Run(name, func(t *testing.T) {
			e.apply(t, object(tc.kind, "e2e-"+name, tc.spec))
			c := e.valid(t, kinds[tc.kind], "e2e-"+name, tc.status, tc.reason)
			if !strings.Contains(c.Message, tc.text) {
				t.Errorf("message is %q, want %q in it", c.Message, tc.text)
			}
			e.describes(t, []string{tc.reason, c.Message}, tc.kind, "e2e-"+name)
			e.valid(t, testbed.Pools, "lan", metav1.ConditionTrue, "Valid")
		})
	}
	served := e.service(t, e.app, "conditions")
	e.served(t, testbed.Client, served)
}

// testPeerDown configures peers whose sessions cannot be established. Their conditions say why,
// and the other sessions keep their routes.
func testPeerDown(t *testing.T, e *env) {
	bgp := e.service(t, e.app, "peerdown", routed)
	e.hops(t, bgp, len(e.workers()))
	t.Run("unreachable", func(t *testing.T) {
		e.apply(t,
			object("BGPPeer", "e2e-unreachable", `{myASN: 64600, peerASN: 64512, peerAddress: 172.31.0.77, connectTime: 1s}`))
		e.sessionDown(t, "e2e-unreachable", "cannot connect")
	})
	// After an OPEN with a wrong AS a router may refuse connections for minutes (BIRD does), so this peer is FRR.
	t.Run("wrong AS", func(t *testing.T) {
		as := func(ctx context.Context, number int) error {
			patch := fmt.Sprintf(`{"spec":{"peerASN":%d}}`, number)
			_, err := e.Resource(testbed.Peers).Patch(ctx, "r1v6", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		}
		must(t, as(t.Context(), 64999))
		undo(t, func(ctx context.Context) error { return as(ctx, router.AS1) })
		e.sessionDown(t, "r1v6", fmt.Sprintf("the router's AS is %d and not 64999", router.AS1))
		e.served(t, testbed.Far, bgp[:1])
		must(t, e.WaitHops(t.Context(), soon, testbed.Router2, bgp[1], len(e.workers())))
	})
	// Restore the right AS.
	e.hops(t, bgp, len(e.workers()))
	e.served(t, testbed.Far, bgp)
}

// sessionDown waits until the condition Established of a peer says why there is no session, and an Event with it.
func (e *env) sessionDown(t *testing.T, peer, text string) {
	t.Helper()
	must(t, testbed.Until(t.Context(), time.Minute, "condition Established of "+peer, func(ctx context.Context) error {
		out, err := e.Kubectl(ctx, "get", "bgppeer", peer, "-o",
			`jsonpath={.status.sessions} {.status.conditions[?(@.type=="Established")]}`)
		if err == nil && !(strings.Contains(out, `"status":"False"`) && strings.Contains(out, `"reason":"SessionDown"`) &&
			strings.Contains(out, text)) {
			err = fmt.Errorf("it does not say %q: %s", text, out)
		}
		return err
	}))
	e.describes(t, []string{"SessionDown", text}, "bgppeer", peer)
	e.why(t, text, "peer", peer)
}

// refused checks that a Service has no address, that its conditions, its Events and the plugin give the reason, and
// that the plugin ends with what to do.
func (e *env) refused(t *testing.T, name, reason, text string, remedies ...string) {
	t.Helper()
	e.refusedIn(t, e.app.Namespace, name, reason, text)
	for _, remedy := range remedies {
		e.why(t, remedy, e.app.Namespace+"/"+name)
	}
}

func (e *env) refusedIn(t *testing.T, ns, name, reason string, texts ...string) {
	t.Helper()
	c := e.waitCondition(t, ns, name, v1beta1.ConditionAddressAssigned, metav1.ConditionFalse, reason)
	e.describes(t, append(texts, reason, c.Message), "service", "-n", ns, name)
	e.why(t, c.Message, ns+"/"+name)
}

// testRefused creates Services whose requests cannot be met: kubectl describe says why, and other Services are not
// affected.
func testRefused(t *testing.T, e *env) {
	e.pool(t, "e2e-only4", `addresses: [192.0.2.16/28]`)
	e.pool(t, "e2e-elsewhere", `addresses: [192.0.2.32/28], serviceAllocation: {namespaces: [elsewhere]}`)
	e.pool(t, "e2e-one", `addresses: [10.150.5.0]`)
	e.pool(t, "e2e-class", `addresses: [10.150.5.8/29], classes: [e2e-silver-plate]`)
	e.pool(t, "e2e-more", `addresses: [10.150.5.16/29]`)
	held := e.service(t, e.app, "refused-holder")
	full := e.address(t, "refused-full", pool("e2e-one"))
	share := all(pool("e2e-more"), annotation(sharingAnnotation, "k"), one(80))
	shared := annotation(addressesAnnotation, e.address(t, "refused-sharer", share).String())
	ns := e.app.Namespace
	for name, tc := range map[string]struct {
		change               change
		reason, text, remedy string
	}{
		"unknown-pool": {pool("nowhere"), "UnknownPool", `asks for pool "nowhere", which does not exist`, ""},
		"no-family":    {pool("e2e-only4"), "NoFamily", "e2e-only4", ""},
		"not-allowed":  {pool("e2e-elsewhere"), "PoolNotAllowed", "e2e-elsewhere", ""},
		"in-use": {annotation(addressesAnnotation, held[0].String()), "AddressInUse",
			held[0].String() + ", which Service " + ns + "/refused-holder holds",
			"First: Ask for another address"},
		"not-in-pool": {annotation(addressesAnnotation, "203.0.113.5"), "AddressNotInPool", "203.0.113.5", ""},
		"unreadable":  {annotation(addressesAnnotation, "banana"), "InvalidRequest", "banana", ""},
		"two-of-one-kind": {annotation(addressesAnnotation, "172.30.0.129,172.30.0.130"), "InvalidRequest", "172.30.0.130",
			""},
		"other-pool-asked": {all(routed, annotation(addressesAnnotation, "172.30.0.189")), "AddressNotInPool", "172.30.0.189",
			""},
		"class": {openStack("class", "silver"), "UnknownClass",
			`asks for class "silver", which no pool has in spec.classes; known are: e2e-silver-plate`, ""},
		"clash": {all(share, shared), "PortClash", "Service " + ns + "/refused-sharer holds port TCP/80",
			"First: Change the port, or the sharing key"},
	} {
		t.Run(name, func(t *testing.T) {
			e.refused(t, e.create(t, e.app, "refused-"+name, tc.change).Name, tc.reason, tc.text, tc.remedy)
		})
	}
	t.Run("exhausted", func(t *testing.T) {
		s := e.create(t, e.app, "refused-exhausted", one(80), pool("e2e-one"))
		e.refused(t, s.Name, "PoolExhausted", `pool "e2e-one" is full`,
			"First: Add addresses to a pool, or delete Services and FloatingIPs that need none")
		e.remove(t, ns, "refused-full")
		e.has(t, s.Name, full)
	})
	t.Run("no pool", func(t *testing.T) {
		undo(t, func(ctx context.Context) error { return e.autoAssign(ctx, true) })
		must(t, e.autoAssign(t.Context(), false))
		e.valid(t, testbed.Pools, "lan", metav1.ConditionTrue, "Valid")

		s := e.create(t, e.app, "refused-no-pool")
		e.refused(t, s.Name, "NoPool", `pool "lan" `, "autoAssign")
		e.served(t, testbed.Client, held)
		must(t, e.autoAssign(t.Context(), true))
		_, err := e.WaitAddresses(t.Context(), s.Namespace, s.Name, 2)
		must(t, err)
	})
}

// autoAssign changes the only pool whose addresses are given unasked.
func (e *env) autoAssign(ctx context.Context, on bool) error {
	_, err := e.Resource(testbed.Pools).Patch(ctx, "lan", types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"autoAssign":%t}}`, on), metav1.PatchOptions{})
	return err
}

// testSamples applies every file of config/samples to a real API server.
func testSamples(t *testing.T, e *env) {
	e.routeByLAN(t, e.workers()...)
	app := e.app
	app.Namespace, app.Name = e.namespace(t), "web"
	must(t, e.Deploy(t.Context(), app))
	files, err := filepath.Glob(e.Path("config", "samples", "*.yaml"))
	must(t, err)
	if len(files) == 0 {
		t.Fatal("there are no samples")
	}
	resources := map[string]string{
		"IPAddressPool": testbed.Pools, "L2Advertisement": testbed.L2Advertisements,
		"BGPAdvertisement": testbed.BGPAdvertisements, "BGPPeer": testbed.Peers, "Community": "communities",
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			must(t, err)
			must(t, e.Apply(t.Context(), app.Namespace, text))
			objects, err := testbed.Decode(text)
			must(t, err)
			for _, o := range objects {
				if resource, ours := resources[o.GetKind()]; ours {
					e.valid(t, resource, o.GetName(), metav1.ConditionTrue, "Valid")
					continue
				}
				if o.GetKind() == "Service" {
					_, err := e.WaitAddresses(t.Context(), app.Namespace, o.GetName(), 2)
					must(t, err)
				}
			}
		})
	}
	e.announced(t, app.Namespace, "web-l2")
	e.waitCondition(t, app.Namespace, "web-egress", v1beta1.ConditionEgress, metav1.ConditionTrue, "EgressActive")
	e.waitCondition(t, app.Namespace, "web-bgp", v1beta1.ConditionAnnouncedBGP, metav1.ConditionTrue, "Announced")
}

// testDelete checks that no node announces or advertises the addresses of a deleted Service.
func testDelete(t *testing.T, e *env) {
	l2 := e.service(t, e.app, "delete-l2")
	bgp := e.service(t, e.app, "delete-bgp", routed)
	e.served(t, testbed.Client, l2)
	e.served(t, testbed.Far, bgp)
	e.hops(t, bgp, len(e.workers()))
	e.remove(t, e.app.Namespace, "delete-l2")
	e.remove(t, e.app.Namespace, "delete-bgp")
	e.silent(t, l2)
	e.hops(t, bgp, 0)
}
