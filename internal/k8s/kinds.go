package k8s

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
)

// kinds has the clients of the kinds of Kubernetes that Holdfast uses. A clientset of client-go has all kinds: that
// would be a quarter of the program, in the memory of every speaker.
type kinds struct {
	core      rest.Interface
	apps      rest.Interface
	discovery rest.Interface

	services      kindClient[*corev1.Service]
	pods          kindClient[*corev1.Pod]
	secrets       kindClient[*corev1.Secret]
	daemonSets    kindClient[*appsv1.DaemonSet]
	leases        kindClient[*coordinationv1.Lease]
	tokenReviews  creator[*authentication.TokenReview]
	accessReviews creator[*authorization.SubjectAccessReview]
}

// kindClient returns the client for the objects of one kind in a namespace; "" means all namespaces.
type kindClient[T any] func(namespace string) client[T]

// client reads and writes the objects of one kind in a namespace.
type client[T any] interface {
	creator[T]
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	Update(ctx context.Context, object T, o metav1.UpdateOptions) (T, error)
	Patch(
		ctx context.Context,
		name string,
		how types.PatchType,
		patch []byte,
		o metav1.PatchOptions,
		subresources ...string,
	) (T, error)
	Watch(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error)
}

// creator creates the objects of one kind in a namespace.
type creator[T any] interface {
	Create(ctx context.Context, object T, o metav1.CreateOptions) (T, error)
}

// apiScheme has the types of these kinds.
var apiScheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	err := errors.Join(
		corev1.AddToScheme(s),
		appsv1.AddToScheme(s),
		discoveryv1.AddToScheme(s),
		coordinationv1.AddToScheme(s),
		authentication.AddToScheme(s),
		authorization.AddToScheme(s),
		v1beta1.AddToScheme(s),
	)
	utilruntime.Must(err)
	return s
}()

var (
	// parameters encodes the parameters of requests.
	parameters = runtime.NewParameterCodec(apiScheme)
	// codecs encode the bodies of requests and answers.
	codecs      = serializer.NewCodecFactory(apiScheme)
	negotiation = rest.CodecFactoryForGeneratedClient(apiScheme, codecs).WithoutConversion()
)

// newKinds returns clients that share an HTTP client.
func newKinds(config *rest.Config, transport *http.Client) (k kinds, err error) {
	var coordination, authn, authz rest.Interface
	clients := map[schema.GroupVersion]*rest.Interface{
		corev1.SchemeGroupVersion:         &k.core,
		appsv1.SchemeGroupVersion:         &k.apps,
		discoveryv1.SchemeGroupVersion:    &k.discovery,
		coordinationv1.SchemeGroupVersion: &coordination,
		authentication.SchemeGroupVersion: &authn,
		authorization.SchemeGroupVersion:  &authz,
	}
	for group, client := range clients {
		*client, err = clientOf(group, config, transport)
		if err != nil {
			return kinds{}, err
		}
	}

	k.services = kindOf[corev1.Service](k.core, "services")
	k.pods = kindOf[corev1.Pod](k.core, "pods")
	k.secrets = kindOf[corev1.Secret](k.core, "secrets")
	k.daemonSets = kindOf[appsv1.DaemonSet](k.apps, "daemonsets")
	k.leases = kindOf[coordinationv1.Lease](coordination, "leases")
	k.tokenReviews = kindOf[authentication.TokenReview](authn, "tokenreviews")("")
	k.accessReviews = kindOf[authorization.SubjectAccessReview](authz, "subjectaccessreviews")("")
	return k, nil
}

// clientOf returns a client of one API group.
func clientOf(group schema.GroupVersion, config *rest.Config, transport *http.Client) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion = &group
	config.NegotiatedSerializer = negotiation
	config.APIPath = "/apis"

	if group.Group == "" {
		config.APIPath = "/api"
	}

	client, err := rest.RESTClientForConfigAndClient(config, transport)
	if err != nil {
		return nil, fmt.Errorf("make client of %s: %w", group, err)
	}

	return client, nil
}

// apiKind is an object of the API, as clients return it.
type apiKind[S any] interface {
	*S
	object
	runtime.Object
}

// kindOf returns the client for one kind; resource is its name in paths.
func kindOf[S any, T apiKind[S]](c rest.Interface, resource string) kindClient[T] {
	return func(namespace string) client[T] {
		return gentype.NewClient(resource, c, parameters, namespace, func() T {
			return new(S)
		})
	}
}

// put creates an object that has no version. It updates another object unless that has changed since it was read.
func put[T metav1.Object](ctx context.Context, c client[T], o T) (T, error) {
	if o.GetResourceVersion() == "" {
		return c.Create(ctx, o, metav1.CreateOptions{})
	}
	return c.Update(ctx, o, metav1.UpdateOptions{})
}
