package k8s

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestMetricsReaders: the API server says whose token it is and what that user may get; one who may is not asked about again for a
// while, also while the API server is away.
func TestMetricsReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		away, asked := false, 0
		kube.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
			asked++
			r := a.(clienttesting.CreateAction).GetObject().(*authentication.TokenReview).DeepCopy()
			if away {
				return true, nil, errors.New("away")
			}
			r.Status.Authenticated = r.Spec.Token != "forged"
			r.Status.User = authentication.UserInfo{Username: r.Spec.Token, UID: "1", Groups: []string{"g"}}
			return true, r, nil
		})
		kube.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
			r := a.(clienttesting.CreateAction).GetObject().(*authorization.SubjectAccessReview).DeepCopy()
			s := r.Spec
			if s.NonResourceAttributes == nil || s.NonResourceAttributes.Path != "/metrics" || s.NonResourceAttributes.Verb != "get" || s.Groups[0] != "g" ||
				s.UID != "1" {
				t.Errorf("asks for %+v", s)
			}
			r.Status.Allowed = s.User == "prometheus"
			return true, r, nil
		})
		may := Clients{kube: kube}.MetricsReaders()
		expect := func(token string, status, questions int) {
			t.Helper()
			before := asked
			if got := may(context.Background(), token); got != status || asked-before != questions {
				t.Errorf("token %q: %d after %d questions, want %d after %d", token, got, asked-before, status, questions)
			}
		}
		expect("", http.StatusUnauthorized, 0)
		expect("forged", http.StatusUnauthorized, 1)
		expect("tenant", http.StatusForbidden, 1)
		expect("tenant", http.StatusForbidden, 1)
		expect("prometheus", http.StatusOK, 1)
		away = true
		time.Sleep(9 * time.Minute)
		expect("prometheus", http.StatusOK, 0)
		expect("tenant", http.StatusUnauthorized, 1)
		time.Sleep(2 * time.Minute)
		expect("prometheus", http.StatusUnauthorized, 1)
	})
}

// TestSelfSigned: the certificate serves for longer than a process does.
func TestSelfSigned(t *testing.T) {
	c, err := SelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil || time.Until(leaf.NotAfter) < 9*365*24*time.Hour || leaf.DNSNames[0] != "holdfast" {
		t.Errorf("%v: until %v for %v", err, leaf.NotAfter, leaf.DNSNames)
	}
}
