package house

import (
	"os"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	fromElsewhere = `this cluster has the release "holdfast" of Holdfast in the namespace holdfast-system`
	aBinding      = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NAME, labels: {app.kubernetes.io/name: holdfast, app.kubernetes.io/instance: INSTANCE, app.kubernetes.io/component: speaker}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NAME}
subjects: [{kind: ServiceAccount, name: NAME, namespace: NAMESPACE}]
`
)

// binding is what gives the speakers of a release their rights.
func binding(t *testing.T, name, instance, namespace string) runtime.Object {
	t.Helper()
	return object(t, strings.NewReplacer("NAMESPACE", namespace, "NAME", name, "INSTANCE", instance).Replace(aBinding))
}

// TestOneRelease: two releases would write to the same pools, Services and nftables tables, and the uninstall of one takes the
// finalizers of both. So no user can give rights to a second one, whichever way it is installed.
func TestOneRelease(t *testing.T) {
	text, err := os.ReadFile("../../config/rbac/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	plugin := newPlugin(t, string(text))
	own := binding(t, "holdfast-speaker", "holdfast", "holdfast-system")
	others := binding(t, "metallb-speaker", "metallb", "metallb-system")
	others.(*rbacv1.ClusterRoleBinding).Labels["app.kubernetes.io/name"] = "metallb"
	user := own.DeepCopyObject()
	user.(*rbacv1.ClusterRoleBinding).Subjects[0] = rbacv1.Subject{Kind: "User", Name: "eve"}
	for _, tt := range []struct {
		name          string
		before, after runtime.Object
		refused       bool
	}{
		{"installed", nil, own, false},
		{"upgraded", own, own, false},
		{"its uninstall Job", nil, binding(t, "holdfast-uninstall", "holdfast", "holdfast-system"), false},
		{"another program", nil, others, false},
		{"a release in another namespace", nil, binding(t, "edge-holdfast-speaker", "edge", "edge"), true},
		{"a release in the same namespace", nil, binding(t, "edge-holdfast-speaker", "edge", "holdfast-system"), true},
		{"the uninstall Job of another release", nil, binding(t, "edge-holdfast-uninstall", "edge", "edge"), true},
		{"the same manifests in another namespace", own, binding(t, "holdfast-speaker", "holdfast", "edge"), true},
		{"with a prefix in another namespace", nil, binding(t, "edge-holdfast-speaker", "holdfast", "edge"), true},
		{"a user", own, user, true},
	} {
		err := create(t, plugin, tt.before, tt.after, administrator)
		if tt.refused != (err != nil) || err != nil && !strings.Contains(err.Error(), fromElsewhere) {
			t.Errorf("%s: got %v, want a refusal: %v", tt.name, err, tt.refused)
		}
	}
}
