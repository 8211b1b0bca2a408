//go:build oldest

package house

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// oldest is an API server of the oldest Kubernetes that Holdfast supports, with our installation.
type oldest struct{ config *rest.Config }

// newOldest starts a server, applies our CRDs and what config/default installs, and waits until our kinds are served.
// No field may be unknown to the server.
func newOldest(t testing.TB) oldest {
	t.Helper()
	s := oldest{startServer(t)}
	crds, err := filepath.Glob("../../config/crd/holdfast.dev_*.yaml")
	if err != nil || len(crds) == 0 {
		t.Fatalf("no CRDs: %v", err)
	}
	for _, file := range crds {
		s.apply(t, file)
	}
	s.waitEstablished(t, len(crds))
	for _, file := range []string{"default/namespace.yaml", "rbac/rbac.yaml", "default/holdfast.yaml"} {
		s.apply(t, filepath.Join("../../config", file))
	}
	return s
}

// apply applies the manifests of a file, as kubectl apply --server-side does.
func (s oldest) apply(t testing.TB, file string) {
	t.Helper()
	f, err := os.Open(file)
	must(t, err)
	defer f.Close()
	for d := yamlutil.NewYAMLOrJSONDecoder(f, 4096); ; {
		o := &unstructured.Unstructured{}
		err := d.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return
		}
		must(t, err)
		if len(o.Object) == 0 {
			continue
		}
		body, err := o.MarshalJSON()
		must(t, err)
		_, err = resourceOf(t, s.config, o).Patch(t.Context(), o.GetName(), types.ApplyPatchType, body,
			metav1.PatchOptions{FieldManager: "house", FieldValidation: metav1.FieldValidationStrict})
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
}

// resourceOf returns a client for the kind and namespace of an object.
func resourceOf(t testing.TB, config *rest.Config, o *unstructured.Unstructured) dynamic.ResourceInterface {
	t.Helper()
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	must(t, err)
	kind := o.GroupVersionKind()
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discover))
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	must(t, err)
	client, err := dynamic.NewForConfig(config)
	must(t, err)
	if mapping.Scope.Name() == "namespace" {
		return client.Resource(mapping.Resource).Namespace(o.GetNamespace())
	}
	return client.Resource(mapping.Resource)
}

// waitEstablished waits until so many CRDs are served, none with a complaint of the API server.
func (s oldest) waitEstablished(t testing.TB, want int) {
	t.Helper()
	client, err := apiextensions.NewForConfig(s.config)
	must(t, err)
	var missing error
	err = wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			list, err := client.CustomResourceDefinitions().List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err
			}
			missing = nil
			if len(list.Items) != want {
				missing = fmt.Errorf("%d CRDs of %d", len(list.Items), want)
			}
			for _, c := range list.Items {
				missing = errors.Join(missing, established(&c))
			}
			return missing == nil, nil
		})
	if err != nil {
		t.Fatalf("%v: %v", err, missing)
	}
}

func established(c *apiextensionsv1.CustomResourceDefinition) error {
	established := apihelpers.IsCRDConditionTrue(c, apiextensionsv1.Established)
	if !established || apihelpers.IsCRDConditionTrue(c, apiextensionsv1.NonStructuralSchema) {
		return fmt.Errorf("%s: %v", c.Name, c.Status.Conditions)
	}
	return nil
}

// as returns the access of a service account, NAMESPACE:NAME, whose pod is on a node.
func (s oldest) as(account, node string) *rest.Config {
	out := rest.CopyConfig(s.config)
	out.Impersonate.UserName = "system:serviceaccount:" + account
	out.Impersonate.Groups = []string{"system:serviceaccounts", "system:authenticated"}
	if node != "" {
		out.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	return out
}

// kubeconfig writes an access to a file, and returns its path.
func kubeconfig(t testing.TB, config *rest.Config) string {
	t.Helper()
	const name = "test"
	file := clientcmdapi.NewConfig()
	file.CurrentContext = name
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthority: config.CAFile}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: config.BearerToken, Impersonate: config.Impersonate.UserName,
		ImpersonateGroups: config.Impersonate.Groups, ImpersonateUserExtra: config.Impersonate.Extra}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*file, path))
	return path
}
