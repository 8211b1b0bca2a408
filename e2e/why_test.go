//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// testWhy asks kubectl-holdfast about faults that no other case plants, what a change would change, and with a tenant's
// rights.
func testWhy(t *testing.T, e *env) {
	ns, node := e.app.Namespace, e.workers()[0]
	t.Run("BGP password", func(t *testing.T) {
		e.service(t, e.app, "why-bgp", routed)
		password := func(ctx context.Context, value string) error {
			_, err := e.Resource(testbed.Peers).Patch(ctx, "r1v6", types.MergePatchType,
				[]byte(`{"spec":{"password":`+value+`}}`), metav1.PatchOptions{})
			return err
		}
		undo(t, func(ctx context.Context) error { return password(ctx, "null") })
		must(t, password(t.Context(), `"wrong"`))
		e.why(t, "another password", "peer", "r1v6")
		e.why(t, "BGPPeer r1v6: ", ns+"/why-bgp") // a note: the other router serves it
	})
	e.pool(t, "e2e-why", `addresses: [172.30.0.214, "fd00:30::3:9"]`)
	e.apply(t, object("L2Advertisement", "e2e-why", fmt.Sprintf(
		`{ipAddressPools: [e2e-why], interfaces: [eth1], nodeSelectors: [{matchLabels: {kubernetes.io/hostname: %s}}]}`,
		node)))
	addresses := e.service(t, e.app, "why-link", pool("e2e-why"))
	t.Run("plan", func(t *testing.T) {
		dir := t.TempDir()
		file := func(name, text string) string {
			name = filepath.Join(dir, name)
			must(t, os.WriteFile(name, []byte(text), 0o600))
			return name
		}
		for _, tt := range []struct {
			name, want string
			args       []string
		}{
			{"drain", ns + "/why-link: " + addresses[0].String() + " by node " + node, []string{"--drain", node}},
			{"strand", "in no pool any more", []string{
				"-f", file("pool.yaml", object("IPAddressPool", "e2e-why", `{addresses: ["fd00:30::3:9"]}`)),
			}},
			{"nothing", "Nothing would change.", []string{
				"-f", file("community.yaml", object("Community", "e2e-why", `{communities: []}`)),
			}},
		} {
			out, err := e.Plugin(t.Context(), append([]string{"plan"}, tt.args...)...)
			if err != nil || !strings.Contains(out, tt.want) {
				t.Errorf("%s: it lacks %q (%v):\n%s", tt.name, tt.want, err, out)
			}
		}
	})
	t.Run("link down", func(t *testing.T) {
		undo(t, func(ctx context.Context) error { return e.Cluster.SetLink(ctx, node, "eth1", true) })
		must(t, e.Cluster.SetLink(t.Context(), node, "eth1", false))
		e.why(t, "has no link to do so. Bring a link up", ns+"/why-link")
	})
	t.Run("tenant", func(t *testing.T) {
		binding := []byte(`
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: e2e-why}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: User, name: e2e-tenant, apiGroup: rbac.authorization.k8s.io}]
`)
		undo(t, func(ctx context.Context) error { return e.Delete(ctx, ns, binding) })
		must(t, e.Apply(t.Context(), ns, binding))
		must(t, testbed.Until(t.Context(), soon, "the tenant's explanation", func(ctx context.Context) error {
			out, err := e.Plugin(ctx, "why", ns+"/why-link", "--as", "e2e-tenant", "-o", "json")
			var reports []struct {
				Steps []struct{ Step, Verdict string }
			}
			if err == nil {
				err = json.Unmarshal([]byte(out), &reports)
			}
			seen := map[string]string{}
			for _, r := range reports {
				for _, s := range r.Steps {
					seen[s.Step] = s.Verdict
				}
			}
			if err == nil && (seen["address"] != "ok" || seen["endpoints"] != "ok" || seen["speakers"] != "unseen" ||
				seen["speakers' pages"] != "unseen") {
				err = fmt.Errorf("it says %v:\n%s", seen, out)
			}
			return err
		}))
	})
	t.Run("probe", func(t *testing.T) {
		addresses := e.service(t, e.app, "why-probe")
		e.announced(t, ns, "why-probe")
		want := []string{"filter on: true, in force: true", "kube-proxy: it", "wire at ", "First: nothing"}
		for _, a := range addresses {
			owner, err := e.WaitOwner(t.Context(), testbed.Client, a)
			must(t, err)
			want = append(want, "speaker "+owner, a.String()+" is announced on eth0", "for "+a.String()+" on link eth0 answers ",
				" of node "+owner, " of "+
					a.String()+" is open")
		}
		must(t, testbed.Until(t.Context(), soon, "the explanation with probes", func(ctx context.Context) error {
			out, err := e.Plugin(ctx, "why", "--probe", ns+"/why-probe")
			for _, w := range want {
				if err == nil && !strings.Contains(out, w) {
					err = fmt.Errorf("it lacks %q:\n%s", w, out)
				}
			}
			t.Log(out)
			return err
		}))
	})
	file := filepath.Join(t.TempDir(), "bundle.json.gz")
	out, err := e.Plugin(t.Context(), "bundle", file)
	if err != nil || strings.Contains(out, "the page of pod") {
		t.Errorf("the bundle lacks a daemon (%v):\n%s", err, out)
	}
	for _, source := range [][]string{{"status"}, {"status", "--from", file}} {
		out, err := e.Plugin(t.Context(), source...)
		if err != nil || !strings.Contains(out, "one leads") {
			t.Errorf("%v is (%v):\n%s", source, err, out)
		}
	}
}
