//go:build e2e && proxy

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// proxyShare has two Services on one address: both go to proxies, one asks no more, and the other's pods have their header until it asks no
// more either.
func proxyShare(t *testing.T, e *env) {
	const one, other, dataPath = "proxy-share", "proxy-share-other", "holdfast.dev/data-path"
	key := annotation(sharingAnnotation, "proxies")
	addresses := e.service(t, e.app, one, behind, key, openStack("proxy-protocol", "v2"))
	e.create(t, e.app, other, to(8080), func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 }, key, annotation(dataPath, "Proxy"))
	e.isProxied(t, one, metav1.ConditionTrue)
	e.isProxied(t, other, metav1.ConditionTrue)
	e.sameAddresses(t, e.app.Namespace, other, addresses)
	e.annotate(t, other, dataPath, nil)
	must(t, testbed.Until(t.Context(), soon, "a condition that names who holds it", func(ctx context.Context) error {
		c, err := e.ServiceCondition(ctx, e.app.Namespace, other, v1beta1.ConditionProxied)
		if err == nil && (c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "asks for no proxy") || !strings.Contains(c.Message, one)) {
			err = fmt.Errorf("it is %s: %s", c.Status, c.Message)
		}
		return err
	}))
	for _, a := range addresses {
		e.told(t, place{host: testbed.Client}, a)
	}
	e.patchService(t, one, fmt.Sprintf(`{"metadata":{"annotations":{"%sproxy-protocol":null}},"spec":{"ports":[{"port":%d,"targetPort":8080}]}}`,
		openStackPrefix, testbed.HTTPPort))
	must(t, testbed.Until(t.Context(), 2*soon, "the way without proxies", func(ctx context.Context) error {
		for _, name := range []string{one, other} {
			s, err := e.Kube.CoreV1().Services(e.app.Namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil || meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionProxied) != nil {
				return fmt.Errorf("%s is still proxied (%w)", name, err)
			}
		}
		got, err := e.Fetch(ctx, testbed.Client, probe.TCP, addresses[0])
		if err == nil && e.engineHas(ctx, got.Client) {
			err = fmt.Errorf("the pod saw %s", got.Client)
		}
		return err
	}))
	e.sameAddresses(t, e.app.Namespace, one, addresses)
}
