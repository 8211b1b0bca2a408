package k8s

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// Secret reads a Secret of Holdfast's namespace from the API server itself. A Secret that
// does not exist has no resource version.
func (k *Cluster) Secret(ctx context.Context, name string) (*corev1.Secret, error) {
	secret, err := k.clients.kube.secrets(k.config.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/name": "holdfast"}},
		}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get secret %s: %w", name, err)
	}
	return secret, nil
}

// WriteSecret replaces the entries of a Secret that was read by data, and creates it if it
// did not exist. It returns the result, or an Overtaken error if another client wrote
// since it was read.
func (k *Cluster) WriteSecret(
	ctx context.Context,
	read *corev1.Secret,
	data map[string][]byte,
) (*corev1.Secret, error) {
	secret := read.DeepCopy()
	secret.Data = data
	wrote, err := put(ctx, k.clients.kube.secrets(k.config.Namespace), secret)
	if err != nil {
		return nil, fmt.Errorf("write secret %s: %w", read.Name, err)
	}
	return wrote, nil
}

const (
	// maxFollowWait is the longest wait until a Secret is read again that may not be read: a right that is granted
	// makes no event.
	maxFollowWait = 30 * time.Second
	// followTime is how long one watch lasts, a half more at most: a right that is taken away ends it then.
	followTime = 5 * time.Minute
)

// FollowSecret calls see with each version of a Secret, nil while there is none, and with each error, until ctx ends.
// It needs the right to get, list and watch this Secret alone. If see returns an error it is called again.
func (k *Cluster) FollowSecret(ctx context.Context, secret lb.Key, see func(*corev1.Secret, error) error) {
	backoff := wait.Backoff{Duration: retryWait, Factor: 2, Jitter: 0.5, Steps: 8, Cap: maxFollowWait}
	version := ""
	for next := backoff; ctx.Err() == nil; {
		followed := false
		if version, followed = k.followFrom(ctx, secret, version, see); followed {
			next = backoff
		}
		sleep(ctx, next.Step())
	}
}

// followFrom watches once, from a version, or from a list without one. It reports whether it could, and returns the
// version to go on from, so that a watch that merely ended costs no list. A watch that showed nothing ends with one: an
// API server whose etcd was restored has no events up to the version that it was asked for, nor has one without etcd.
func (k *Cluster) followFrom(
	ctx context.Context,
	secret lb.Key,
	version string,
	see func(*corev1.Secret, error) error,
) (reached string, followed bool) {
	api := k.clients.kube.secrets(secret.Namespace)
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", secret.Name).String()}
	if version == "" {
		var list corev1.SecretList
		err := k.clients.kube.core.Get().
			Namespace(secret.Namespace).
			Resource("secrets").
			VersionedParams(&options, parameters).
			Do(ctx).
			Into(&list)
		if ctx.Err() != nil {
			return "", false
		}
		var found *corev1.Secret
		if err == nil && len(list.Items) > 0 {
			found = &list.Items[0]
		}
		if failed := see(found, err); failed != nil || err != nil {
			return "", false
		}
		version = list.ResourceVersion
	}
	options.ResourceVersion, options.AllowWatchBookmarks = version, true
	options.TimeoutSeconds = new(int64(wait.Jitter(followTime, 0.5).Seconds()))
	events, err := api.Watch(ctx, options)
	if err != nil {
		return "", false
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		o, isSecret := event.Object.(*corev1.Secret)
		if !isSecret {
			return "", event.Type != apiwatch.Error
		}
		reached = o.ResourceVersion
		if event.Type == apiwatch.Deleted {
			o = nil
		}
		if event.Type != apiwatch.Bookmark && see(o, nil) != nil {
			return "", true
		}
	}
	return reached, true
}
