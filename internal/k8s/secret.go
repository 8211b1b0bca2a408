package k8s

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Secret reads a Secret of Holdfast's namespace from the API server itself. A Secret that
// does not exist has no resource version.
func (k *Cluster) Secret(ctx context.Context, name string) (*corev1.Secret, error) {
	secret, err := k.clients.kube.CoreV1().Secrets(k.config.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/name": "holdfast"}}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get secret %s: %w", name, err)
	}
	return secret, nil
}

// WriteSecret replaces the entries of a Secret that was read by data, and creates it if it
// did not exist. It returns the result, or an Overtaken error if another client wrote
// since it was read.
func (k *Cluster) WriteSecret(ctx context.Context, read *corev1.Secret, data map[string][]byte) (*corev1.Secret, error) {
	secrets := k.clients.kube.CoreV1().Secrets(k.config.Namespace)
	secret := read.DeepCopy()
	secret.Data = data
	write := func() (*corev1.Secret, error) { return secrets.Update(ctx, secret, metav1.UpdateOptions{}) }
	if read.ResourceVersion == "" {
		write = func() (*corev1.Secret, error) { return secrets.Create(ctx, secret, metav1.CreateOptions{}) }
	}
	wrote, err := write()
	if err != nil {
		return nil, fmt.Errorf("write secret %s: %w", read.Name, err)
	}
	return wrote, nil
}
