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

// Secret reads a Secret of Holdfast's namespace from the API server itself. A Secret that does not exist has no
// resource version.
func (k *Cluster) Secret(ctx context.Context, name string) (*corev1.Secret, error) {
	secret, err := k.clients.kube.secrets(k.config.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		metadata := metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{"app.kubernetes.io/name": "holdfast"},
		}
		return &corev1.Secret{ObjectMeta: metadata}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get secret %s: %w", name, err)
	}

	return secret, nil
}

// WriteSecret replaces the entries of a Secret that was read by data, and creates it if it did not exist. It returns
// the result, or an Overtaken error if another client wrote since the Secret was read.
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
	// maxFollowWait is the longest wait until a forbidden Secret is read again: granting a right makes no event.
	maxFollowWait = 30 * time.Second
	// followTime is the duration of one watch, plus up to a half. After it, a right that was revoked ends the reading.
	followTime = 5 * time.Minute
)

// FollowSecret calls receive with each version of a Secret, nil if there is none, and with each error, until ctx ends.
// It needs the right to get, list and watch this Secret alone. If receive returns an error it is called again.
func (k *Cluster) FollowSecret(ctx context.Context, secret lb.Key, receive func(*corev1.Secret, error) error) {
	backoff := wait.Backoff{
		Duration: retryWait,
		Factor:   2,
		Jitter:   0.5,
		Steps:    8,
		Cap:      maxFollowWait,
	}
	version := ""
	next := backoff
	for ctx.Err() == nil {
		var isWatched bool
		version, isWatched = k.followFrom(ctx, secret, version, receive)
		if isWatched {
			next = backoff
		}

		sleep(ctx, next.Step())
	}
}

// followFrom watches once, from a version; without a version it lists first. It reports whether it could watch, and
// returns the version to continue from, so that a watch that merely ended costs no list. After a watch without events
// the next call lists: an API server whose etcd was restored, or that has no etcd, has no events up to the version.
func (k *Cluster) followFrom(
	ctx context.Context,
	secret lb.Key,
	version string,
	receive func(*corev1.Secret, error) error,
) (reached string, isWatched bool) {
	options := metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", secret.Name).String(),
	}
	if version == "" {
		var isListed bool
		version, isListed = k.listSecret(ctx, secret.Namespace, options, receive)
		if !isListed {
			return "", false
		}
	}

	api := k.clients.kube.secrets(secret.Namespace)
	options.ResourceVersion = version
	options.AllowWatchBookmarks = true
	options.TimeoutSeconds = new(int64(wait.Jitter(followTime, 0.5).Seconds()))
	events, err := api.Watch(ctx, options)
	if err != nil {
		return "", false
	}

	defer events.Stop()
	for event := range events.ResultChan() {
		o, isSecret := event.Object.(*corev1.Secret)
		if !isSecret {
			isError := event.Type == apiwatch.Error
			return "", !isError
		}

		reached = o.ResourceVersion
		switch event.Type {
		case apiwatch.Bookmark:
			continue
		case apiwatch.Deleted:
			o = nil
		}
		if receive(o, nil) != nil {
			return "", true
		}
	}

	return reached, true
}

// listSecret calls receive with the Secret that options select, or with an error. It returns the version of the list;
// false after any error.
func (k *Cluster) listSecret(
	ctx context.Context,
	namespace string,
	options metav1.ListOptions,
	receive func(*corev1.Secret, error) error,
) (version string, isListed bool) {
	var list corev1.SecretList
	err := k.clients.kube.core.Get().
		Namespace(namespace).
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

	receiveErr := receive(found, err)
	if receiveErr != nil || err != nil {
		return "", false
	}

	return list.ResourceVersion, true
}
