def f(pairs): return [float(len(d)) for q,d in pairs]
def g(pairs): return [float(len(set(q.split())&set(d.split())))+len(d)/1000 for q,d in pairs]
f.identity="f1"; g.identity="g1"
