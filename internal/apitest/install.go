package apitest

import (
	"bytes"
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

// Install applies our CRDs and what config/default installs, and waits until the API server serves our kinds. No field may be
// unknown to the server.
func Install(t testing.TB, config *rest.Config) {
	t.Helper()
	crds, err := filepath.Glob(filepath.Join(Repository(), "config/crd/holdfast.dev_*.yaml"))
	if err != nil || len(crds) == 0 {
		t.Fatalf("no CRDs: %v", err)
	}
	for _, file := range crds {
		Apply(t, config, file)
	}
	waitEstablished(t, config, len(crds))
	for _, file := range []string{"config/default/namespace.yaml", "config/rbac/rbac.yaml", "config/default/holdfast.yaml"} {
		Apply(t, config, filepath.Join(Repository(), file))
	}
}

// Apply applies the manifests of a file, as kubectl apply --server-side does.
func Apply(t testing.TB, config *rest.Config, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := Decode(text)
	for _, o := range objects {
		if err == nil {
			err = apply(t.Context(), config, o)
		}
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// Decode returns the objects of a manifest.
func Decode(manifest []byte) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for d := yamlutil.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096); ; {
		o := &unstructured.Unstructured{}
		err := d.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if len(o.Object) > 0 {
			out = append(out, o)
		}
	}
}

func apply(ctx context.Context, config *rest.Config, o *unstructured.Unstructured) error {
	resource, err := Resource(config, o)
	if err != nil {
		return err
	}
	body, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = resource.Patch(ctx, o.GetName(), types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: "apitest", FieldValidation: metav1.FieldValidationStrict})
	return err
}

// Resource returns a client for the kind and namespace of an object.
func Resource(config *rest.Config, o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	kind := o.GroupVersionKind()
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discover))
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == "namespace" {
		return client.Resource(mapping.Resource).Namespace(o.GetNamespace()), nil
	}
	return client.Resource(mapping.Resource), nil
}

// waitEstablished waits until so many CRDs are served, none with a complaint of the API server.
func waitEstablished(t testing.TB, config *rest.Config, want int) {
	t.Helper()
	client, err := apiextensions.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	var missing error
	err = wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
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
	if !apihelpers.IsCRDConditionTrue(c, apiextensionsv1.Established) || apihelpers.IsCRDConditionTrue(c, apiextensionsv1.NonStructuralSchema) {
		return fmt.Errorf("%s: %v", c.Name, c.Status.Conditions)
	}
	return nil
}

// As returns the access of a service account, NAMESPACE:NAME, whose pod is on a node.
func As(config *rest.Config, account, node string) *rest.Config {
	out := rest.CopyConfig(config)
	out.Impersonate.UserName = "system:serviceaccount:" + account
	out.Impersonate.Groups = []string{"system:serviceaccounts", "system:authenticated"}
	if node != "" {
		out.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	return out
}

// Kubeconfig writes an access to a file, and returns its path.
func Kubeconfig(t testing.TB, config *rest.Config) string {
	t.Helper()
	const name = "test"
	file := clientcmdapi.NewConfig()
	file.CurrentContext = name
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthority: config.CAFile}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: config.BearerToken, Impersonate: config.Impersonate.UserName,
		ImpersonateGroups: config.Impersonate.Groups, ImpersonateUserExtra: config.Impersonate.Extra}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatal(err)
	}
	return path
}
